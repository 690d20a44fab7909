"""Memory of graph nodes of the simulated GPU: charged while a launch has it, and for what nodes need at one time."""

from __future__ import annotations

import ctypes as c

from tests.kit.simulator.clients import Card, Cuda
from tests.kit.simulator.cuda import (
    MIB,
    U64,
    Location,
    PoolProps,
    Size,
    get,
    used,
)

GRAPH_USED, GRAPH_RESERVED, GRAPH_RESERVED_HIGH, AUTO_FREE = 0, 2, 3, 1


def test_memory_allocated_in_a_graph_is_charged_while_a_launch_has_it(gpu: Card) -> None:
    gpu.client().call(captured_allocations)


def captured_allocations(cuda: Cuda) -> None:
    cuda.context()
    stream, n = cuda.stream(), 10 * MIB
    before = used(cuda)
    pointer, graph, executable = U64(), c.c_void_p(), c.c_void_p()
    cuda.cuStreamBeginCapture_v2(stream, 0)
    cuda.cuMemAllocAsync(c.byref(pointer), Size(n), stream)
    cuda.cuMemsetD8Async(pointer, c.c_ubyte(5), Size(n), stream)
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    assert used(cuda) == before
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(0))
    cuda.cuGraphLaunch(executable, stream)
    assert used(cuda) == before + n
    assert get(cuda, pointer.value, 16) == b"\x05" * 16
    assert cuda.try_("cuGraphLaunch", executable, stream) == 1, "its memory is still out"
    cuda.cuMemFreeAsync(pointer, stream)
    assert (graph_memory(cuda, GRAPH_USED), graph_memory(cuda, GRAPH_RESERVED)) == (0, n)
    assert used(cuda) == before + n, "kept for the next launch"
    cuda.cuGraphLaunch(executable, stream)
    assert used(cuda) == before + n
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before + n, "in use"
    cuda.cuMemFreeAsync(pointer, stream)
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before
    assert (graph_memory(cuda, GRAPH_RESERVED), graph_memory(cuda, GRAPH_RESERVED_HIGH)) == (0, n)
    cuda.cuDeviceSetGraphMemAttribute(0, GRAPH_RESERVED_HIGH, c.byref(U64(0)))
    assert graph_memory(cuda, GRAPH_RESERVED_HIGH) == 0
    assert cuda.try_("cuDeviceSetGraphMemAttribute", 0, GRAPH_RESERVED, c.byref(U64(0))) == 1


def graph_memory(cuda: Cuda, attribute: int) -> int:
    value = U64()
    cuda.cuDeviceGetGraphMemAttribute(0, attribute, c.byref(value))
    return value.value


class AllocNode(c.Structure):
    _fields_ = [
        ("props", PoolProps),
        ("access", c.c_void_p),
        ("accesses", Size),
        ("bytes", Size),
        ("at", U64),
    ]


def alloc_node(
    cuda: Cuda, graph: c.c_void_p, size: int, after: c.c_void_p | None = None
) -> AllocNode:
    node, params = c.c_void_p(), AllocNode()
    params.props.type, params.props.location = 1, Location(1, 0)
    params.bytes = size
    before = (c.c_void_p * 1)(after) if after else None
    cuda.cuGraphAddMemAllocNode(
        c.byref(node), graph, before, Size(1 if after else 0), c.byref(params)
    )
    return params


def test_graphs_take_what_their_nodes_need_at_one_time(gpu: Card) -> None:
    gpu.client().call(graph_nodes)


def graph_nodes(cuda: Cuda) -> None:
    cuda.context()
    stream, before, n = cuda.stream(), used(cuda), 10 * MIB
    graph, executable, node = c.c_void_p(), c.c_void_p(), c.c_void_p()
    cuda.cuGraphCreate(c.byref(graph), 0)
    for _ in range(3):  # one after another: the same memory each time
        params = alloc_node(cuda, graph, n)
        cuda.cuGraphAddMemFreeNode(c.byref(node), graph, None, Size(0), U64(params.at))
    last = alloc_node(cuda, graph, n)
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, U64(AUTO_FREE))
    cuda.cuGraphUpload(executable, stream)
    assert (used(cuda) - before, graph_memory(cuda, GRAPH_USED)) == (n, 0)
    for _ in range(2):  # what the last launch left is freed by the next
        cuda.cuGraphLaunch(executable, stream)
        assert (used(cuda) - before, graph_memory(cuda, GRAPH_USED)) == (n, n)
    cuda.cuMemFree_v2(U64(last.at))
    cuda.cuDeviceGraphMemTrim(0)
    assert used(cuda) == before
    huge = c.c_void_p()
    cuda.cuGraphCreate(c.byref(huge), 0)
    for _ in range(5):
        alloc_node(cuda, huge, 20 << 30)
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), huge, U64(0))
    assert cuda.try_("cuGraphUpload", executable, stream) == 2
    assert cuda.try_("cuGraphLaunch", executable, stream) == 2
    assert used(cuda) == before
