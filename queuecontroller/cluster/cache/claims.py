"""View of the cache for counting claims: ResourceClaimTemplates, DeviceClasses, ResourceSlices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.gpushares.claims.counting import Known
from queuecontroller.gpushares.claims.mappings import DeviceClasses
from queuecontroller.gpushares.claims.published import Published, published
from sluicecommon.kubernetes.resources import (
    DEVICE_CLASSES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)

KINDS: Final = (RESOURCE_CLAIM_TEMPLATES, DEVICE_CLASSES, RESOURCE_SLICES)


class KnownClaims:
    def __init__(self, cache: ObjectCache, classes: Callable[[], DeviceClasses]) -> None:
        self._cache = cache
        self._classes = classes
        self._devices: dict[str, Sequence[Published]] = {}
        self.revision = 0
        """Grows with each change of the objects that claims are counted by."""

    def changed(self) -> None:
        self.revision += 1
        self._devices.clear()

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
            self._of_driver,
        )

    def _of_driver(self, driver: str) -> Sequence[Published]:
        if driver not in self._devices:
            self._devices[driver] = published(self._cache.all_of(RESOURCE_SLICES), driver)
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
