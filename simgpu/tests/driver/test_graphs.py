"""Stream capture and graphs of the simulated driver."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.simulator.clients import Card, Cuda, card

MS = 1_000_000
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT = (
    900,
    901,
    902,
    903,
    904,
    905,
    906,
)
ILLEGAL_STATE = 401


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def begin(cuda: Cuda, stream: c.c_void_p, mode: int = GLOBAL) -> None:
    cuda.cuStreamBeginCapture_v2(stream, mode)


def end(cuda: Cuda, stream: c.c_void_p) -> c.c_void_p:
    graph = c.c_void_p()
    cuda.cuStreamEndCapture(stream, c.byref(graph))
    return graph


def instantiate(cuda: Cuda, graph: c.c_void_p) -> c.c_void_p:
    executable = c.c_void_p()
    cuda.cuGraphInstantiateWithFlags(c.byref(executable), graph, c.c_ulonglong(0))
    return executable


def count(cuda: Cuda, name: str, graph: c.c_void_p, *lists: None) -> int:
    n = c.c_size_t()
    getattr(cuda, name)(graph, *lists, c.byref(n))
    return n.value


def graph_ms(cuda: Cuda, executable: c.c_void_p, launches: int = 1) -> float:
    stream, before, after = cuda.stream(), cuda.event(), cuda.event()
    cuda.cuGraphLaunch(executable, stream)
    cuda.cuEventRecord(before, stream)
    for _ in range(launches):
        cuda.cuGraphLaunch(executable, stream)
    cuda.cuEventRecord(after, stream)
    cuda.cuStreamSynchronize(stream)
    return cuda.elapsed_ms(before, after)


def captured(cuda: Cuda) -> tuple[int, int, float]:
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    begin(cuda, stream)
    for _ in range(3):
        cuda.launch(kernel, stream, 2 * MS)
    graph = end(cuda, stream)
    nodes = count(cuda, "cuGraphGetNodes", graph, None)
    edges = count(cuda, "cuGraphGetEdges", graph, None, None)
    return nodes, edges, graph_ms(cuda, instantiate(cuda, graph), 4)


def test_a_capture_runs_nothing_and_its_graph_takes_the_time_of_all_its_nodes(gpu: Card) -> None:
    nodes, edges, ms = gpu.client().call(captured)
    assert (nodes, edges) == (3, 2)
    assert ms == pytest.approx(24, abs=0.01)


def fork_and_join(cuda: Cuda) -> tuple[int, int, int, float]:
    cuda.context()
    kernel, first, second = cuda.kernel(), cuda.stream(), cuda.stream()
    fork, join = cuda.event(), cuda.event()
    begin(cuda, first)
    cuda.launch(kernel, first, MS)
    cuda.cuEventRecord(fork, first)
    cuda.cuStreamWaitEvent(second, fork, 0)
    cuda.launch(kernel, second, MS)
    cuda.launch(kernel, first, MS)
    cuda.cuEventRecord(join, second)
    cuda.cuStreamWaitEvent(first, join, 0)
    cuda.launch(kernel, first, MS)
    graph = end(cuda, first)
    status = c.c_int(-1)
    cuda.cuStreamIsCapturing(second, c.byref(status))
    return (
        count(cuda, "cuGraphGetNodes", graph, None),
        count(cuda, "cuGraphGetEdges", graph, None, None),
        status.value,
        graph_ms(cuda, instantiate(cuda, graph)),
    )


def test_another_stream_joins_through_an_event(gpu: Card) -> None:
    nodes, edges, status, ms = gpu.client().call(fork_and_join)
    assert (nodes, edges, status) == (4, 4, 0)
    assert ms == pytest.approx(4, abs=0.01)


def unjoined(cuda: Cuda) -> tuple[int, int]:
    cuda.context()
    kernel, first, second, fork = cuda.kernel(), cuda.stream(), cuda.stream(), cuda.event()
    begin(cuda, first)
    cuda.launch(kernel, first, MS)
    cuda.cuEventRecord(fork, first)
    cuda.cuStreamWaitEvent(second, fork, 0)
    cuda.launch(kernel, second, MS)
    graph = c.c_void_p()
    return cuda.try_("cuStreamEndCapture", second, c.byref(graph)), cuda.try_(
        "cuStreamEndCapture", first, c.byref(graph)
    )


def test_a_fork_must_be_joined_and_ended_where_it_began(gpu: Card) -> None:
    unmatched, first = gpu.client().call(unjoined)
    assert unmatched == UNMATCHED
    assert first == INVALIDATED, "the mistake broke it"


def only_unjoined(cuda: Cuda) -> int:
    cuda.context()
    kernel, first, second, fork = cuda.kernel(), cuda.stream(), cuda.stream(), cuda.event()
    begin(cuda, first)
    cuda.launch(kernel, first, MS)
    cuda.cuEventRecord(fork, first)
    cuda.cuStreamWaitEvent(second, fork, 0)
    cuda.launch(kernel, second, MS)
    graph = c.c_void_p()
    return cuda.try_("cuStreamEndCapture", first, c.byref(graph))


def test_an_unjoined_fork_is_refused(gpu: Card) -> None:
    assert gpu.client().call(only_unjoined) == UNJOINED


def mistakes(cuda: Cuda) -> dict[str, int]:
    cuda.context()
    kernel, stream, other = cuda.kernel(), cuda.stream(), cuda.stream()
    outside, graph, codes = cuda.event(), c.c_void_p(), {}
    cuda.cuEventRecord(outside, other)
    codes["legacy stream"] = cuda.try_("cuStreamBeginCapture_v2", c.c_void_p(1), GLOBAL)
    codes["end without begin"] = cuda.try_("cuStreamEndCapture", stream, c.byref(graph))
    begin(cuda, stream)
    codes["begin twice"] = cuda.try_("cuStreamBeginCapture_v2", stream, GLOBAL)
    pointer = c.c_uint64()
    codes["alloc"] = cuda.try_("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(4096))
    codes["launch on the legacy stream"] = cuda.try_(
        "cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, None, (c.c_void_p * 1)(), None
    )
    codes["wait for work outside"] = cuda.try_("cuStreamWaitEvent", stream, outside, 0)
    codes["end"] = cuda.try_("cuStreamEndCapture", stream, c.byref(graph))
    begin(cuda, stream)
    codes["synchronise"] = cuda.try_("cuStreamSynchronize", stream)
    codes["end after it"] = cuda.try_("cuStreamEndCapture", stream, c.byref(graph))
    begin(cuda, stream, RELAXED)
    codes["alloc while relaxed"] = cuda.try_("cuMemAlloc_v2", c.byref(pointer), c.c_size_t(4096))
    codes["end relaxed"] = cuda.try_("cuStreamEndCapture", stream, c.byref(graph))
    return codes


def test_what_a_capture_forbids(gpu: Card) -> None:
    assert gpu.client().call(mistakes) == {
        "legacy stream": UNSUPPORTED,
        "end without begin": ILLEGAL_STATE,
        "begin twice": ILLEGAL_STATE,
        "alloc": UNSUPPORTED,
        "launch on the legacy stream": IMPLICIT,
        "wait for work outside": ISOLATION,
        "end": INVALIDATED,
        "synchronise": UNSUPPORTED,
        "end after it": INVALIDATED,
        "alloc while relaxed": 0,
        "end relaxed": 0,
    }


class KernelParams(c.Structure):
    _fields_ = [
        ("function", c.c_void_p),
        ("grid", c.c_uint * 3),
        ("block", c.c_uint * 3),
        ("shared", c.c_uint),
        ("params", c.c_void_p),
        ("extra", c.c_void_p),
        ("kern", c.c_void_p),
        ("ctx", c.c_void_p),
    ]


def built_by_hand(cuda: Cuda) -> list[float]:
    cuda.context()
    graph, node, executable = c.c_void_p(), c.c_void_p(), c.c_void_p()
    kernel = cuda.kernel()

    def params(ns: int) -> KernelParams:
        duration = c.c_uint64(ns)
        values = (c.c_void_p * 1)(c.addressof(duration))
        cuda.held += [duration, values]
        return KernelParams(
            kernel, (1, 1, 1), (32, 1, 1), 0, c.cast(values, c.c_void_p), None, None, None
        )

    cuda.cuGraphCreate(c.byref(graph), 0)
    cuda.cuGraphAddKernelNode_v2(c.byref(node), graph, None, c.c_size_t(0), c.byref(params(3 * MS)))
    second = c.c_void_p()
    cuda.cuGraphAddKernelNode_v2(
        c.byref(second), graph, c.byref(node), c.c_size_t(1), c.byref(params(4 * MS))
    )
    executable = instantiate(cuda, graph)
    ms = [graph_ms(cuda, executable)]
    cuda.cuGraphExecKernelNodeSetParams_v2(executable, second, c.byref(params(10 * MS)))
    ms.append(graph_ms(cuda, executable))
    cuda.cuGraphKernelNodeSetParams_v2(node, c.byref(params(MS)))
    ms.append(graph_ms(cuda, executable))  # an executable is a copy
    cuda.cuGraphExecUpdate_v2(executable, graph, None)
    ms.append(graph_ms(cuda, executable))
    outer, child = c.c_void_p(), c.c_void_p()
    cuda.cuGraphCreate(c.byref(outer), 0)
    for _ in range(2):
        cuda.cuGraphAddChildGraphNode(c.byref(child), outer, None, c.c_size_t(0), graph)
    ms.append(graph_ms(cuda, instantiate(cuda, outer)))
    cuda.cuGraphDestroyNode(node)
    ms.append(graph_ms(cuda, instantiate(cuda, graph)))
    return ms


def test_graphs_built_changed_and_nested(gpu: Card) -> None:
    assert gpu.client().call(built_by_hand) == pytest.approx([7, 13, 13, 5, 10, 4], abs=0.01)
