"""View of the cache for counting claims: ResourceClaimTemplates, DeviceClasses, ResourceSlices, and
DeviceTaintRules where they are served (Kubernetes 1.37)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.gpushares.claims.counting import Known, Matching
from queuecontroller.gpushares.claims.mappings import DeviceClasses
from queuecontroller.gpushares.claims.published import Published, published, taint_rules
from sluicecommon.kubernetes.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)

KINDS: Final = (RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES)
COUNTED: Final = (*KINDS, DEVICE_TAINT_RULES)
"""Kinds after a change of which claims are counted again."""


class KnownClaims:
    def __init__(
        self, cache: ObjectCache, classes: Callable[[], DeviceClasses], free: bool = False
    ) -> None:
        """If `free`, the devices that each request may get are found, too."""
        self._cache = cache
        self._classes = classes
        self._free = free
        self._devices: dict[str | None, Sequence[Published]] = {}
        self._matching: Matching | None = None
        self.revision = 0
        """Grows with each change of the objects that claims are counted by."""

    def changed(self) -> None:
        self.revision += 1
        self._devices.clear()
        self._matching = None

    def known(self) -> Known | None:
        """Return what claims are counted by; None if no DeviceClass is mapped to a quota."""
        classes = self._classes()
        if not classes:
            return None
        cache = self._cache
        return Known(
            classes,
            lambda namespace, name: cache.get(RESOURCE_CLAIM_TEMPLATES, f"{namespace}/{name}"),
            lambda name: cache.get(DEVICE_CLASSES, name),
            self.devices,
            self._found() if self._free else None,
        )

    def _found(self) -> Matching:
        if self._matching is None:
            self._matching = Matching(self.devices())
        return self._matching

    def devices(self, driver: str | None = None) -> Sequence[Published]:
        """Return the published devices of a driver; None: of all."""
        if driver not in self._devices:
            rules = taint_rules(self._cache.all_of(DEVICE_TAINT_RULES))
            slices = self._cache.all_of(RESOURCE_SLICES)
            self._devices[driver] = published(slices, driver, rules)
        return self._devices[driver]


def has_claims(workload: Document) -> bool:
    """Return True if a pod set of the Workload has resource claims."""
    return any(_claims(one) for one in (workload.get("spec") or {}).get("podSets") or ())


def _claims(pod_set: Any) -> bool:
    template = pod_set.get("template") if isinstance(pod_set, dict) else None
    spec = template.get("spec") if isinstance(template, dict) else None
    return bool(isinstance(spec, dict) and spec.get("resourceClaims"))


def holds_quota(workload: Document) -> bool:
    return bool((workload.get("status") or {}).get("admission"))
