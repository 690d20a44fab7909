"""View of the cache for counting claims: ResourceClaimTemplates, DeviceClasses, ResourceSlices, and
DeviceTaintRules where they are served (Kubernetes 1.37).

Pods get claims by name, or by extended resources that DeviceClasses name; for those DeviceClasses
are followed without any mapping, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.gpushares.claims.counting import Known, Matching
from queuecontroller.gpushares.claims.extended import extended_classes
from queuecontroller.gpushares.claims.mappings import DeviceClasses
from queuecontroller.gpushares.claims.published import Published, published, taint_rules
from queuecontroller.kueueapi.manifests.workloads import read_workload
from queuecontroller.scheduler.model.compatibility import Feature
from sluicecommon.kubernetes.resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
)
from sluicecommon.reader import ManifestError, Reader, read_or_refused

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
        self._extended: Mapping[str, Document] | None = None
        self._named: set[str] = set()
        """Extended resources that DeviceClasses name, or did before."""
        self.revision = 0
        """Grows with each change of the objects that claims are counted by."""

    def changed(self) -> None:
        self.revision += 1
        self._devices.clear()
        self._matching = None
        self._extended = None

    def class_changed(self) -> None:
        """Note at once which extended resources DeviceClasses name now: a Workload that comes must
        not be admitted for the quota of another name before all are counted again."""
        self._extended = None

    def counts(self, workload: Document) -> bool:
        """Return True if pods of the Workload get devices by claims."""
        return has_claims(workload) or _requests(workload, self.extended)

    def counts_anew(self, workload: Document) -> bool:
        """Return True if they do, or did before."""
        return self.counts(workload) or _requests(workload, self._named)

    @property
    def extended(self) -> Mapping[str, Document]:
        """DeviceClass of each extended resource that one names."""
        if self._extended is None:
            counts = Feature.EXTENDED_RESOURCES in self._cache.policy.features
            classes = self._cache.all_of(DEVICE_CLASSES) if counts else ()
            self._extended = extended_classes(classes)
            self._named.update(self._extended)
        return self._extended

    def known(self) -> Known | None:
        """Return what claims are counted by; None if DeviceClasses are neither mapped to a quota
        nor name an extended resource."""
        classes = self._classes()
        if not classes and not self.extended:
            return None
        cache = self._cache
        return Known(
            classes,
            lambda namespace, name: cache.get(RESOURCE_CLAIM_TEMPLATES, f"{namespace}/{name}"),
            lambda name: cache.get(DEVICE_CLASSES, name),
            self.devices,
            self._found() if self._free else None,
            self.extended,
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


def is_unresolved(workload: Document) -> bool:
    """Return True if nothing but the devices of its pods keeps a Workload from being read."""
    try:
        read_or_refused(lambda: read_workload(workload))
    except ManifestError:
        return False
    return True


def _claims(pod_set: Any) -> bool:
    template = pod_set.get("template") if isinstance(pod_set, dict) else None
    spec = template.get("spec") if isinstance(template, dict) else None
    return bool(isinstance(spec, dict) and spec.get("resourceClaims"))


def _requests(workload: Document, names: Collection[str]) -> bool:
    """Return True if a container of the Workload's pods requests one of the resources."""
    if not names:
        return False
    for one in (workload.get("spec") or {}).get("podSets") or ():
        pod = Reader(one).child("template").child("spec")
        for container in (*pod.children("initContainers"), *pod.children("containers")):
            resources = container.child("resources")
            for kind in ("requests", "limits"):
                if any(name in names for name in resources.child(kind).names()):
                    return True
    return False


def holds_quota(workload: Document) -> bool:
    return bool((workload.get("status") or {}).get("admission"))
