"""Fragmentation of the free GPU memory and time.

For a typical request, the *usable* part of what is free is what would be taken if only such
requests came until none fits any more. The rest are fragments, which no such request can have.

Memory and time are counted separately: memory on a GPU whose time is all promised is a fragment as
much as time on a GPU whose memory is full. Ratios are in parts per million of what is free, 0 when
nothing is.

Free is what remains on GPUs that take new work, GPUs whose slots are all taken among them, but not
exclusive ones. GPUs in MIG mode are counted for requests for their instances only, in memory
slices, and have no time to share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from queuecontroller.scheduler.placement.capacity import TAKES_WORK
from queuecontroller.scheduler.placement.mig import RESOURCE, resource_of
from queuecontroller.scheduler.placement.request import WHOLE_PPM, GpuRequest
from queuecontroller.scheduler.placement.stock import GpuRoom, NodeRoom, Stock, parts_on


def _part(ppm: int) -> GpuRequest:
    return GpuRequest(memory_ppm=ppm, share_ppm=ppm)


REFERENCES: Final[Mapping[str, GpuRequest]] = MappingProxyType(
    {
        "12.5%": _part(125_000),
        "25%": _part(250_000),
        "50%": _part(500_000),
        "100%": _part(WHOLE_PPM),
    }
)
"""Reference requests by their name in metrics and reports: an eighth, a quarter, a half and the
whole of one GPU, memory and time alike."""


@dataclass(frozen=True, slots=True)
class Fragmentation:
    free_bytes: int
    usable_bytes: int
    free_time_ppm: int = 0
    """Sum over all GPUs: 3,000,000 is the time of three."""
    usable_time_ppm: int = 0
    fits: int = 0
    """Number of such requests that still have room."""

    @property
    def ppm(self) -> int:
        """Ratio of fragments in the free memory."""
        return _lost(self.free_bytes, self.usable_bytes)

    @property
    def time_ppm(self) -> int:
        """Ratio of fragments in the free time."""
        return _lost(self.free_time_ppm, self.usable_time_ppm)


NOTHING: Final = Fragmentation(0, 0)


def _lost(free: int, usable: int) -> int:
    return (free - usable) * WHOLE_PPM // free if free > 0 else 0


def of_stock(stock: Stock, request: GpuRequest) -> Fragmentation:
    return _sum(of_node(room, request) for room in stock.nodes.values())


class Gauge:
    """Fragmentation of a stock for the reference sizes, and for the MIG profiles it offers; only
    nodes that changed since the last call are evaluated."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[int, dict[str, Fragmentation]]] = {}

    def measure(self, stock: Stock) -> dict[str, Fragmentation]:
        """Fragmentation by the reference's name; MIG profiles by resource without prefix."""
        total = dict.fromkeys(REFERENCES, NOTHING)
        for name in self._nodes.keys() - stock.nodes.keys():
            del self._nodes[name]
        for name, room in stock.nodes.items():
            known = self._nodes.get(name)
            if known is None or known[0] != room.version:
                known = self._nodes[name] = (room.version, _of_references(room))
            for what, found in known[1].items():
                total[what] = _sum((total.get(what, NOTHING), found))
        return total


def _of_references(room: NodeRoom) -> dict[str, Fragmentation]:
    found = {name: of_node(room, request) for name, request in REFERENCES.items()}
    for profile in sorted(room.mig):
        name = f"mig-{resource_of(profile).removeprefix(RESOURCE)}"
        found[name] = of_node(room, GpuRequest(mig=(profile,)))
    return found


def of_node(room: NodeRoom, request: GpuRequest) -> Fragmentation:
    """Fragmentation of one node. A request for several GPUs takes one part of each: the count that
    fits is found by pairing the GPUs with most room, which is exact for equal parts. For MIG
    requests the first profile is counted."""
    if request.mig:
        return _sum(_of_mig(gpu, request.mig[0]) for gpu in room.gpus.values())
    open_ = [gpu for gpu in room.gpus.values() if _is_open(gpu)]
    fits = [(_times(gpu, request), request.memory_on(gpu.gpu)) for gpu in open_]
    whole = _whole_requests([times for times, _ in fits], request.count)
    parts = whole * request.count
    usable = parts_taken = 0
    for times, memory in sorted(fits, key=lambda fit: fit[1]):
        taken = min(times, whole, parts - parts_taken)
        usable += taken * memory
        parts_taken += taken
    return Fragmentation(
        sum(max(0, gpu.memory_bytes) for gpu in open_),
        usable,
        sum(max(0, gpu.share_ppm) for gpu in open_),
        parts_taken * (request.share_ppm if request.hard else 0),
        whole,
    )


def _is_open(gpu: GpuRoom) -> bool:
    return gpu.gives_shares and not gpu.alone


def _of_mig(gpu: GpuRoom, profile: str) -> Fragmentation:
    spans = gpu.gpu.mig_spans(profile)
    if not spans or not gpu.gpu.mig_enabled or gpu.gpu.health not in TAKES_WORK:
        return NOTHING
    slices = max(
        span.start + span.size
        for one in gpu.gpu.mig_profiles
        for span in gpu.gpu.mig_spans(one.name)
    )
    taken = {at for span in gpu.spans for at in range(span.start, span.start + span.size)}
    fits = gpu.mig_free(profile)
    slice_bytes = gpu.gpu.memory_bytes // slices
    return Fragmentation(
        (slices - len(taken)) * slice_bytes, fits * spans[0].size * slice_bytes, fits=fits
    )


def in_words(stock: Stock, request: GpuRequest) -> str:
    """Text for a workload that waits for room: how much is free in all, and how much of that such
    requests could have. Empty where nothing is lost."""
    found = of_stock(stock, request)
    lost = found.free_bytes - found.usable_bytes
    if lost <= 0:
        return ""
    count = sum(
        gpu.memory_bytes > 0 and _is_open(gpu)
        for room in stock.nodes.values()
        for gpu in room.gpus.values()
    )
    where = "" if request.mig else f", in pieces on {count} GPU{'s' if count != 1 else ''}"
    room = f"room for {found.fits} such" if found.fits else "no piece is large enough"
    return (
        f"{found.free_bytes >> 20} MiB of GPU memory are free{where}, {found.ppm // 10_000} % of it"
        f" of no use for {request.describe()}: {room}"
    )


def _times(gpu: GpuRoom, request: GpuRequest) -> int:
    """Number of such parts this GPU can still give."""
    if request.wants(gpu.gpu) is not None:
        return 0
    share_ppm = request.share_ppm if request.hard else 0
    return parts_on(gpu, request.memory_on(gpu.gpu), share_ppm, request.exclusive)


def _whole_requests(times: Sequence[int], count: int) -> int:
    """The most requests of `count` different GPUs each: r is possible if the GPUs can give r *
    count parts with none giving more than r."""
    low, high = 0, sum(times) // max(1, count)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(t, middle) for t in times) >= middle * count:
            low = middle
        else:
            high = middle - 1
    return low


def _sum(parts: Iterable[Fragmentation]) -> Fragmentation:
    free = usable = free_time = usable_time = fits = 0
    for one in parts:
        free += one.free_bytes
        usable += one.usable_bytes
        free_time += one.free_time_ppm
        usable_time += one.usable_time_ppm
        fits += one.fits
    return Fragmentation(free, usable, free_time, usable_time, fits)
