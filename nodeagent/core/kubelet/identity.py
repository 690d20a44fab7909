"""Whose container is the kubelet starting? From its own records, never from a guess.

PreStartContainer names device ids only. The kubelet's checkpoint has, for each container, the ids
and the answer we gave, with our nonce in it: that is exact. PodResources is asked as well, because
a checkpoint that is older than the world must not decide; it has no UIDs and no plain init
containers, so its silence proves nothing, its contradiction does.
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
    init containers that had them before it."""

    pod: PodIdentity
    containers: tuple[Claim, ...]
    """One at least."""


def identify(
    device_ids: Collection[str], checkpoint: Checkpoint, listings: Sequence[Listing]
) -> Holder:
    """Raises NotYet, Never."""
    wanted = frozenset(device_ids)
    holders = [entry for entry in checkpoint.entries if entry.device_ids == wanted]
    if not holders:
        raise RetryLater(
            "the kubelet's checkpoint does not say yet which container has these devices"
        )
    uids = sorted({entry.pod_uid for entry in holders})
    if len(uids) > 1:
        raise RetryLater(f"the kubelet's checkpoint gives these devices to pods {', '.join(uids)}")
    if any(entry.nonce is None for entry in holders):
        names = ", ".join(sorted(entry.container for entry in holders if entry.nonce is None))
        raise PermanentError(
            f"container {names} of pod {uids[0]} got its devices from another plugin, before sluice"
            " served this node: delete the pod, its controller makes a new one"
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
    """Namespace and name of the pod, empty when PodResources does not show it. Raises NotYet when
    the two records contradict each other."""
    own = [entry for entry in entries if entry.pod_uid == uid]
    own_ids = frozenset().union(*(entry.device_ids for entry in own))
    own_names = {entry.container for entry in own}
    # A pod made anew under the same name may be listed beside the old one for a moment.
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
