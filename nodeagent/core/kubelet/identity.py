"""Identifies the container that the kubelet starts, from the kubelet's own records, never by a
guess.

PreStartContainer has device ids only. The kubelet's checkpoint has the ids of each container with
the answer that we gave, including our nonce: that is exact. PodResources is read as well, because
an outdated checkpoint must not decide. It has neither UIDs nor plain init containers, so a missing
entry proves nothing, but a contradiction does.

A kubelet may give a device to two pods: a List of PodResources, of ours or another program such as
dcgm-exporter, makes it forget a device that it has reserved for an Allocate under way. Neither pod
is wrong, and the ledger has room for both or refuses one. So each has its grant, by its nonce.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nodeagent.ports.kubelet import (
    Checkpoint,
    CheckpointEntry,
    Claim,
    Listing,
    PermanentError,
    PodIdentity,
    RetryLater,
)
from nodeagent.units import PodUid


@dataclass(frozen=True, slots=True)
class Holder:
    """The containers of one pod that hold exactly these devices: an application container and the
    init containers that had them before."""

    pod: PodIdentity
    containers: tuple[Claim, ...]
    """Never empty."""
    beside: frozenset[PodUid] = frozenset()
    """Other pods to which the kubelet has given some of these devices, too."""


def identify(
    device_ids: Collection[str], checkpoint: Checkpoint, listings: Sequence[Listing]
) -> tuple[Holder, ...]:
    """Find the container of these devices, of each pod that has exactly these: one, but for the
    kubelet's error. Raises RetryLater or PermanentError."""
    wanted = frozenset(device_ids)
    sharing = frozenset(one.pod_uid for one in checkpoint.entries if one.device_ids & wanted)
    holders: dict[PodUid, list[CheckpointEntry]] = {}
    for entry in checkpoint.entries:
        if entry.device_ids == wanted:
            holders.setdefault(entry.pod_uid, []).append(entry)
    if not holders:
        raise RetryLater(
            "the kubelet's checkpoint does not have a container with these devices yet"
        )
    name = _cross_check(sharing, wanted, checkpoint.entries, listings)
    nonces = [entry.nonce for held in holders.values() for entry in held]
    if len(set(nonces) - {None}) != sum(nonce is not None for nonce in nonces):
        raise PermanentError(
            f"the kubelet's checkpoint has the same allocation twice, for {_pods(holders)}"
        )
    return tuple(
        Holder(PodIdentity(uid, *name), _claims(uid, holders[uid]), sharing - {uid})
        for uid in sorted(holders)
    )


def _claims(uid: PodUid, holders: Sequence[CheckpointEntry]) -> tuple[Claim, ...]:
    if any(entry.nonce is None for entry in holders):
        names = ", ".join(sorted(entry.container for entry in holders if entry.nonce is None))
        raise PermanentError(
            f"container {names} of pod {uid} got its devices from another plugin, before sluice"
            " served this node: delete the pod, its controller creates a new one"
        )
    return tuple(
        Claim(entry.nonce, entry.container, entry.driver)
        for entry in sorted(holders, key=lambda one: one.nonce or "")
        if entry.nonce is not None
    )


def _pods(uids: Collection[PodUid]) -> str:
    return ("pod " if len(uids) == 1 else "pods ") + ", ".join(sorted(uids))


def _cross_check(
    uids: frozenset[PodUid],
    wanted: frozenset[str],
    entries: Sequence[CheckpointEntry],
    listings: Sequence[Listing],
) -> tuple[str, str]:
    """Namespace and name of the pod; empty if PodResources does not list it, or if there are
    several pods. Raises RetryLater if the two records contradict each other."""
    own = [entry for entry in entries if entry.pod_uid in uids]
    own_ids = frozenset().union(*(entry.device_ids for entry in own))
    own_names = {entry.container for entry in own}
    # A pod that was recreated under the same name may be listed beside the old one for a moment.
    listed = {(one.namespace, one.pod) for one in listings if one.device_ids & own_ids}
    for one in listings:
        if one.device_ids & wanted and one.container not in own_names:
            raise RetryLater(
                f"the kubelet's records disagree: PodResources has {one.namespace}/{one.pod},"
                f" container {one.container}, the checkpoint has {_pods(uids)}"
            )
    if len(listed) > len(uids):
        names = ", ".join(sorted(f"{namespace}/{name}" for namespace, name in listed))
        raise RetryLater(f"PodResources gives the devices of {_pods(uids)} to {names}")
    return next(iter(listed), ("", "")) if len(uids) == 1 else ("", "")
