"""An upper bound for one node: how many pods of one kind it could take if some workloads had left.
No workload is taken out of the stock for it. Several pods, the links between GPUs and MIG geometry
are counted optimistically: where the bound is too small, there is no room; where it is not,
`choose` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from queuecontroller.scheduler.placement.capacity import TAKES_WORK
from queuecontroller.scheduler.placement.choose import PodToPlace
from queuecontroller.scheduler.placement.mig import Span, most
from queuecontroller.scheduler.placement.request import GpuRequest
from queuecontroller.scheduler.placement.stock import GpuRoom, NodeRoom, Share, parts_on


class _Gpu:
    """Free memory, time and slots of one GPU."""

    __slots__ = ("alone", "holders", "memory_bytes", "room", "share_ppm", "slots", "spans")

    def __init__(self, room: GpuRoom) -> None:
        self.room = room
        self.memory_bytes = room.memory_bytes
        self.share_ppm = room.share_ppm
        self.slots = room.slots
        self.holders = room.holders
        self.alone = room.alone
        self.spans: list[Span] | None = None
        """Taken places of MIG instances; None: as in the stock."""

    def free(self, share: Share, sign: int, time_only: bool) -> None:
        self.share_ppm += sign * share.share_ppm
        self.alone -= sign * share.alone
        if time_only:
            return
        self.memory_bytes += sign * share.memory_bytes
        self.slots += sign
        self.holders -= sign
        if share.span is not None:
            if self.spans is None:
                self.spans = list(self.room.spans)
            if sign < 0:
                self.spans.append(share.span)
            elif share.span in self.spans:
                self.spans.remove(share.span)


class NodeEstimate:
    """Bound for one kind of `pod`; `time_only` is True for victims that release time alone."""

    __slots__ = ("_count", "_gpus", "_takes")

    def __init__(self, room: NodeRoom, pod: PodToPlace) -> None:
        self._gpus = {uuid: _Gpu(gpu) for uuid, gpu in room.gpus.items()}
        self._count, self._takes = _measure(pod, self._gpus)

    def leave(self, shares: Iterable[Share], time_only: bool) -> bool:
        """Release shares of a victim; True if that may have made room."""
        return self._free(shares, 1, time_only)

    def come_back(self, shares: Iterable[Share], time_only: bool) -> None:
        """Undo `leave`."""
        self._free(shares, -1, time_only)

    def _free(self, shares: Iterable[Share], sign: int, time_only: bool) -> bool:
        more = False
        for share in shares:
            gpu = self._gpus.get(share.uuid)
            if gpu is not None:
                gpu.free(share, sign, time_only)
                more |= self._takes(share.uuid)
        return more

    def takes(self, pods: int) -> bool:
        """True if `pods` of the pods could be on the node together."""
        return self._count(pods)

    def most(self, pods: int) -> int:
        """Number of pods that could be on the node together, at most `pods`."""
        found = 0
        while found < pods and self._count(found + 1):
            found += 1
        return found


_Count = Callable[[int], bool]
_Takes = Callable[[str], bool]
"""Called with a GPU whose free amounts changed; returns True if it may take more pods now."""


def _measure(pod: PodToPlace, gpus: dict[str, _Gpu]) -> tuple[_Count, _Takes]:
    if pod.again:
        return _again(pod, gpus)
    if pod.request.mig:
        return _instances(pod.request, gpus)
    return _shares(pod.request, gpus)


def _again(pod: PodToPlace, gpus: dict[str, _Gpu]) -> tuple[_Count, _Takes]:
    """Count pods on the same parts of the same GPUs as before."""
    uuids = {share.uuid for share in pod.again}

    def is_free(share: Share) -> bool:
        gpu = gpus.get(share.uuid)
        return (
            gpu is not None
            and share.share_ppm <= gpu.share_ppm
            and share.memory_bytes <= gpu.memory_bytes
            and gpu.alone <= 0
            and not (share.alone and gpu.holders > 0)
        )

    return (
        lambda pods: pods <= 1 and all(is_free(share) for share in pod.again),
        lambda uuid: uuid in uuids,
    )


def _instances(request: GpuRequest, gpus: dict[str, _Gpu]) -> tuple[_Count, _Takes]:
    """Count each MIG profile on its own."""
    wanted = Counter(request.mig)
    cards = {
        uuid: gpu
        for uuid, gpu in gpus.items()
        if gpu.room.gpu.mig_enabled
        and gpu.room.gpu.health in TAKES_WORK
        and request.wants(gpu.room.gpu) is None
    }

    def free(profile: str) -> int:
        return sum(
            most(
                gpu.room.gpu.mig_spans(profile), gpu.room.spans if gpu.spans is None else gpu.spans
            )
            for gpu in cards.values()
        )

    def count(pods: int) -> bool:
        return all(free(profile) >= number * pods for profile, number in wanted.items())

    return count, lambda uuid: uuid in cards


def _shares(request: GpuRequest, gpus: dict[str, _Gpu]) -> tuple[_Count, _Takes]:
    """Count pods with a share of `request.count` different GPUs each."""
    share_ppm = request.share_ppm if request.hard else 0
    needs = {
        uuid: request.memory_on(gpu.room.gpu)
        for uuid, gpu in gpus.items()
        if gpu.room.gives_shares and request.wants(gpu.room.gpu) is None
    }
    numa = request.one_numa_node

    def on(uuid: str) -> int:
        return parts_on(gpus[uuid], needs[uuid], share_ppm, request.exclusive)

    fits = {uuid: on(uuid) for uuid in needs}

    def takes(uuid: str) -> bool:
        if uuid not in fits:
            return False
        before, now = fits[uuid], on(uuid)
        fits[uuid] = now
        return now > before

    def together(found: Iterable[int], pods: int) -> bool:
        # Each pod needs different GPUs: no GPU counts more than once for a pod.
        return sum(min(one, pods) for one in found) >= request.count * pods

    def count(pods: int) -> bool:
        if not numa:
            return together(fits.values(), pods)
        groups: dict[int | None, list[int]] = {}
        for uuid, fit in fits.items():
            groups.setdefault(gpus[uuid].room.gpu.numa_node, []).append(fit)
        if pods == 1:
            return any(together(group, 1) for group in groups.values())
        return together(fits.values(), pods)

    return count, takes
