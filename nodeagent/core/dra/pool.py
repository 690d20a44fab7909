"""A node's pool of devices in ResourceSlices: computes the writes that make the published pool
match the wanted one.

A node has one pool, in as many slices as their limits require. The scheduler reads the slices of
the highest generation, and only when all of them exist (`resourceSliceCount`), so every change gets
a new generation, higher than any that is seen, in every slice. Slices have fixed names and are
written one by one from the first, each on condition that its resourceVersion is unchanged: of two
writers only one gets past the first slice of a generation, so no generation is a mixture.

A slice that the API server stored differently from what was sent (an older one drops fields that it
does not know) counts as written, by its resourceVersion.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.core.dra.partitions import MAX_SETS
from nodeagent.core.kubelet.pod_limits import parse_quantity
from nodeagent.ports.dra.claims import DRIVER

API_VERSION: Final = "resource.k8s.io/v1"
MAX_DEVICES_IN_SLICE: Final = 64
"""Devices in one slice if one of them has a taint. The limit is 128 without, but a taint must not
move devices to another slice."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Body:
    """Content of one slice: devices, or counter sets that devices of other slices consume."""

    devices: tuple[Document, ...] = ()
    counters: tuple[Document, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """One of our slices as the API server has it."""

    name: str
    version: str
    """The object's resourceVersion."""
    uid: str
    pool: str
    generation: int
    count: int
    body: Body


@dataclass(frozen=True, slots=True)
class Put:
    """Create the slice, or replace it if its resourceVersion is still `version`."""

    name: str
    version: str
    document: Document
    digest: str
    """Digest of the generation and the body, see `plan`."""


@dataclass(frozen=True, slots=True)
class Delete:
    name: str
    uid: str


Write = Put | Delete


def bodies(devices: Sequence[Document], counters: Sequence[Document] = ()) -> tuple[Body, ...]:
    """Split devices and counter sets into slices, by name, so that adding or removing a device
    moves few others. Without devices there are no slices."""
    if not devices:
        return ()
    sets = sorted(counters, key=lambda one: str(one["name"]))
    ordered = sorted(devices, key=lambda one: str(one["name"]))
    return tuple(
        Body(counters=tuple(sets[at : at + MAX_SETS])) for at in range(0, len(sets), MAX_SETS)
    ) + tuple(
        Body(tuple(ordered[at : at + MAX_DEVICES_IN_SLICE]))
        for at in range(0, len(ordered), MAX_DEVICES_IN_SLICE)
    )


def slice_name(node: str, number: int) -> str:
    """Name of a slice. A long node name is shortened, because it may already be as long as an
    object name may be."""
    if len(node) > 200:
        node = f"{node[:180].rstrip('-.')}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
    return f"{node}-{DRIVER}-{number}"


def plan(
    node: str,
    node_uid: str,
    wanted: Sequence[Body],
    seen: Mapping[str, Seen],
    sent: Mapping[str, tuple[str, str]],
) -> list[Write]:
    """The writes that are needed, in order; empty if the pool is up to date.

    `seen` has all slices of this driver on this node. `sent` has, by name, the digest of what this
    daemon wrote last and the resourceVersion that it got.
    """
    names = [slice_name(node, number) for number in range(len(wanted))]
    if _is_current(node, names, wanted, seen, sent):
        return []
    generation = max((one.generation for one in seen.values()), default=0) + 1
    writes: list[Write] = []
    for name, body in zip(names, wanted, strict=True):
        before = seen.get(name)
        document = _document(node, node_uid, name, body, generation, len(wanted), before)
        version = before.version if before is not None else ""
        writes.append(Put(name, version, document, digest(body, generation)))
    kept = set(names)
    writes += [Delete(one.name, one.uid) for one in seen.values() if one.name not in kept]
    return writes


def _is_current(
    node: str,
    names: Sequence[str],
    wanted: Sequence[Body],
    seen: Mapping[str, Seen],
    sent: Mapping[str, tuple[str, str]],
) -> bool:
    if set(names) != set(seen):
        return False
    if len({one.generation for one in seen.values()}) > 1:
        return False
    for name, body in zip(names, wanted, strict=True):
        one = seen[name]
        if one.pool != node or one.count != len(wanted):
            return False
        as_sent = sent.get(name) == (digest(body, one.generation), one.version)
        if not as_sent and normal(one.body) != normal(body):
            return False
    return True


def digest(body: Body, generation: int) -> str:
    text = json.dumps([generation, body.devices, body.counters], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def normal(body: Body) -> Any:
    """Normalise a body for comparison, whichever client wrote it: amounts as numbers, without the
    fields that the API server adds."""
    return [_normal("", one) for one in (*body.devices, *body.counters)]


def _normal(key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _normal(name, one) for name, one in value.items() if name != "timeAdded"}
    if isinstance(value, list | tuple):
        return [_normal(key, one) for one in value]
    if key in ("value", "default", "min", "max", "step", "validValues") and isinstance(value, str):
        try:
            return str(parse_quantity(value))
        except ValueError:  # The value belongs to a taint, not to a quantity.
            return value
    return value


def _document(
    node: str,
    node_uid: str,
    name: str,
    body: Body,
    generation: int,
    count: int,
    before: Seen | None,
) -> Document:
    metadata: dict[str, Any] = {"name": name}
    if before is not None:
        metadata["resourceVersion"] = before.version
    if node_uid:  # The slices are deleted with their node.
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    spec: dict[str, Any] = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": count},
    }
    if body.counters:
        spec["sharedCounters"] = list(body.counters)
    else:
        spec["devices"] = [_since(one, before) for one in body.devices]
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": spec,
    }


def _since(device: Document, before: Seen | None) -> Document:
    """Copy the time of a taint that the slice had already: evictions count from it."""
    if before is None or not device.get("taints"):
        return device
    was = next((one for one in before.body.devices if one["name"] == device["name"]), {})
    known = {
        (one.get("key"), one.get("value"), one.get("effect")): one["timeAdded"]
        for one in was.get("taints") or ()
        if one.get("timeAdded")
    }
    taints = [
        {**one, "timeAdded": known[key]}
        if (key := (one["key"], one["value"], one["effect"])) in known
        else one
        for one in device["taints"]
    ]
    return {**device, "taints": taints}


def read_slice(document: Document) -> Seen:
    """Read a ResourceSlice. Raises KeyError, TypeError or AttributeError if it has another form."""
    head, spec = document["metadata"], document["spec"]
    pool = spec["pool"]
    return Seen(
        head["name"],
        head["resourceVersion"],
        head["uid"],
        pool["name"],
        int(pool["generation"]),
        int(pool["resourceSliceCount"]),
        Body(tuple(spec.get("devices") or ()), tuple(spec.get("sharedCounters") or ())),
    )
