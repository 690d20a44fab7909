"""Identifies the container that the kubelet starts, from the kubelet's own records, never by a
guess.

PreStartContainer has device ids only. The kubelet's checkpoint has the ids of each container with
the answer that we gave, including our nonce: that is exact. PodResources is read as well, because
an outdated checkpoint must not decide. It has neither UIDs nor plain init containers, so a missing
entry proves nothing, but a contradiction does.
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


def identify(
    device_ids: Collection[str], checkpoint: Checkpoint, listings: Sequence[Listing]
) -> Holder:
    """Find the container of these devices. Raises RetryLater or PermanentError."""
    wanted = frozenset(device_ids)
    holders = [entry for entry in checkpoint.entries if entry.device_ids == wanted]
    if not holders:
        raise RetryLater(
            "the kubelet's checkpoint does not have a container with these devices yet"
        )
    uids = sorted({entry.pod_uid for entry in holders})
    if len(uids) > 1:
        raise RetryLater(f"the kubelet's checkpoint gives these devices to pods {', '.join(uids)}")
    if any(entry.nonce is None for entry in holders):
        names = ", ".join(sorted(entry.container for entry in holders if entry.nonce is None))
        raise PermanentError(
            f"container {names} of pod {uids[0]} got its devices from another plugin, before sluice"
            " served this node: delete the pod, its controller creates a new one"
        )
    nonces = [entry.nonce for entry in holders if entry.nonce is not None]
    if len(set(nonces)) != len(nonces):
        raise PermanentError(
            f"the kubelet's checkpoint has the same allocation twice, for pod {uids[0]}"
        )
    name = _cross_check(uids[0], wanted, checkpoint.entries, listings)
    return Holder(
        PodIdentity(uids[0], *name),
        tuple(
            Claim(entry.nonce, entry.container, entry.driver)
            for entry in sorted(holders, key=lambda one: one.nonce or "")
            if entry.nonce is not None
        ),
    )


def _cross_check(
    uid: PodUid,
    wanted: frozenset[str],
    entries: Sequence[CheckpointEntry],
    listings: Sequence[Listing],
) -> tuple[str, str]:
    """Namespace and name of the pod; empty if PodResources does not list it. Raises RetryLater if
    the two records contradict each other."""
    own = [entry for entry in entries if entry.pod_uid == uid]
    own_ids = frozenset().union(*(entry.device_ids for entry in own))
    own_names = {entry.container for entry in own}
    # A pod that was recreated under the same name may be listed beside the old one for a moment.
    listed = {(one.namespace, one.pod) for one in listings if one.device_ids & own_ids}
    for one in listings:
        if one.device_ids & wanted and one.container not in own_names:
            raise RetryLater(
                f"the kubelet's records disagree: PodResources has {one.namespace}/{one.pod},"
                f" container {one.container}, the checkpoint has pod {uid}"
            )
    if len(listed) > 1:
        names = ", ".join(sorted(f"{namespace}/{name}" for namespace, name in listed))
        raise RetryLater(f"PodResources gives the devices of pod {uid} to {names}")
    return next(iter(listed), ("", ""))
