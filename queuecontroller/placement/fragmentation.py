"""How much of what is free is of use.

Of a typical request, the *usable* memory is what would be taken if nothing but such requests came
until none fits any more. The rest of the free memory is fragments: it is there, and nobody who asks
can have it. Reported in parts per million of the free memory, 0 when nothing is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queuecontroller.placement.request import WHOLE_PPM, GpuRequest
from queuecontroller.placement.stock import GpuRoom, NodeRoom, Stock


@dataclass(frozen=True, slots=True)
class Fragmentation:
    free_bytes: int
    usable_bytes: int

    @property
    def ppm(self) -> int:
        if self.free_bytes <= 0:
            return 0
        return (self.free_bytes - self.usable_bytes) * WHOLE_PPM // self.free_bytes


def of_stock(stock: Stock, request: GpuRequest) -> Fragmentation:
    return _sum(of_node(room, request) for room in stock.nodes.values())


def of_requests(stock: Stock, typical: Sequence[tuple[GpuRequest, int]]) -> int:
    """Over several typical requests with weights: the weighted mean, in parts per million."""
    weight = sum(share for _, share in typical)
    if weight <= 0:
        return 0
    return sum(of_stock(stock, request).ppm * share for request, share in typical) // weight


def of_node(room: NodeRoom, request: GpuRequest) -> Fragmentation:
    """A request for several GPUs takes one part of each: the count that fits is found by pairing
    the GPUs with most room, which is exact for equal parts."""
    usable_rooms = [gpu for gpu in room.gpus.values() if gpu.usable]
    free = sum(max(0, gpu.memory_bytes) for gpu in usable_rooms)
    fits = [(_times(gpu, request), request.memory_on(gpu.gpu)) for gpu in usable_rooms]
    whole = _whole_requests([times for times, _ in fits], request.count)
    parts = whole * request.count
    usable = 0
    for times, memory in sorted(fits, key=lambda fit: fit[1]):
        taken = min(times, whole, parts)
        usable += taken * memory
        parts -= taken
    return Fragmentation(free, usable)


def _times(gpu: GpuRoom, request: GpuRequest) -> int:
    """How many such parts this GPU can still give."""
    if request.wants(gpu.gpu) is not None:
        return 0
    if request.exclusive:
        return int(gpu.holders == 0 and request.memory_on(gpu.gpu) <= gpu.memory_bytes)
    times = gpu.slots
    memory = request.memory_on(gpu.gpu)
    if memory > 0:
        times = min(times, max(0, gpu.memory_bytes) // memory)
    if request.hard and request.share_ppm > 0:
        times = min(times, max(0, gpu.share_ppm) // request.share_ppm)
    return times


def _whole_requests(times: Sequence[int], count: int) -> int:
    """The most requests of `count` different GPUs each: r is possible if the GPUs can give
    r * count parts with none giving more than r."""
    low, high = 0, sum(times) // max(1, count)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(t, middle) for t in times) >= middle * count:
            low = middle
        else:
            high = middle - 1
    return low


def _sum(parts: Iterable[Fragmentation]) -> Fragmentation:
    free = usable = 0
    for part in parts:
        free += part.free_bytes
        usable += part.usable_bytes
    return Fragmentation(free, usable)
