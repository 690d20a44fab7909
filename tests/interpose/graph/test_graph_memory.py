"""Memory nodes of graphs are charged like any other memory: before the device takes it, and by what it took."""

from __future__ import annotations

import pytest

from tests.interpose.regions import GIB
from tests.interpose.simulated import Ask, ask, machine, region

__all__ = ["ask", "machine", "region"]


def test_captured_allocations_stop_at_the_cap(ask: Ask) -> None:
    got = ask("""
s, at, g = stream(), u64(), pointer()
def capture(n):
    ok(cuda.cuStreamBeginCapture_v2(s, 0))
    ok(cuda.cuMemAllocAsync(byref(at), size(n), s))
    ok(cuda.cuStreamEndCapture(s, byref(g)))
    return instantiate(g)
big, small = capture(8 * GIB), capture(3 * GIB)
refused = [cuda.cuGraphUpload(big, s), cuda.cuGraphLaunch(big, s)]
untouched = [reserved(), charged()]
ok(cuda.cuGraphLaunch(small, s))
answer(refused=refused, untouched=untouched, held=[reserved(), charged()], beside=plain(2 * GIB),
       fits=plain(GIB // 2))
""")
    assert got["refused"] == [2, 2]
    assert got["untouched"] == [0, 0]
    assert got["held"] == [3 * GIB, 3 * GIB]
    assert (got["beside"], got["fits"]) == (2, 0)


def test_memory_is_kept_for_the_next_launch_and_returned_by_a_trim(ask: Ask) -> None:
    got = ask("""
s, g, seen = stream(), graph(), []
node, at = alloc(g, 2 * GIB)
free(g, at, node)
e = instantiate(g)
seen.append(charged())
ok(cuda.cuGraphUpload(e, s)); seen.append(charged())
ok(cuda.cuGraphLaunch(e, s)); seen.append(charged())
ok(cuda.cuGraphLaunch(e, s)); ok(cuda.cuStreamSynchronize(s)); seen.append(charged())
ok(cuda.cuDeviceGraphMemTrim(0)); seen.append(charged())
ok(cuda.cuGraphLaunch(e, s)); seen.append(charged())
ok(cuda.cuGraphExecDestroy(e)); seen.append(charged())
room = plain(3 * GIB)
answer(seen=[n // GIB for n in seen], room=room, left=reserved())
""")
    assert got["seen"] == [0, 2, 2, 2, 0, 2, 2]
    assert (got["room"], got["left"]) == (0, 0), "what is only kept makes room, as a pool's does"


def test_what_one_node_frees_the_next_may_have(ask: Ask) -> None:
    got = ask("""
s, chain, beside, node = stream(), graph(), graph(), ()
for _ in range(5):
    a, at = alloc(chain, 2 * GIB, *node)
    node = (free(chain, at, a),)
for _ in range(3):  # none waits for another: all may be there at one time
    a, at = alloc(beside, 2 * GIB)
    free(beside, at, a)
one, other = instantiate(chain), instantiate(beside)
answer(chain=cuda.cuGraphLaunch(one, s), held=charged(), beside=cuda.cuGraphLaunch(other, s))
""")
    assert (got["chain"], got["held"], got["beside"]) == (0, 2 * GIB, 2)


def test_what_a_launch_leaves_is_freed_by_the_next_with_auto_free(ask: Ask) -> None:
    got = ask("""
s, g = stream(), graph()
node, at = alloc(g, 3 * GIB)
kept, auto = instantiate(g), instantiate(g, AUTO_FREE)
launches = [cuda.cuGraphLaunch(auto, s) for _ in range(4)]
held = [reserved(), charged()]
ok(cuda.cuMemFreeAsync(u64(at), s))
once = [cuda.cuGraphLaunch(kept, s), cuda.cuGraphLaunch(kept, s)]
answer(launches=launches, held=held, once=once, still=charged())
""")
    assert got["launches"] == [0, 0, 0, 0]
    assert got["held"] == [3 * GIB, 3 * GIB]
    assert got["once"] == [0, 1], "the driver's own error: its memory is still out"
    assert got["still"] == 3 * GIB


@pytest.mark.parametrize(
    "way",
    [
        "inner = graph(); alloc(inner, 5 * GIB)\n"
        "ok(cuda.cuGraphAddChildGraphNode(byref(pointer()), g, None, size(0), inner))",
        "first = graph(); alloc(first, 5 * GIB); g = pointer(); ok(cuda.cuGraphClone(byref(g), first))",
        "p = Node(type=10); p.alloc.props.type, p.alloc.props.location = 1, Location(1, 0)\n"
        "p.alloc.bytes = 5 * GIB\n"
        "ok(cuda.cuGraphAddNode_v2(byref(pointer()), g, None, None, size(0), byref(p)))",
        "[alloc(g, GIB) for _ in range(5)]",
    ],
    ids=["child graph", "clone", "cuGraphAddNode", "five nodes"],
)
def test_every_way_to_a_memory_node_is_seen(ask: Ask, way: str) -> None:
    code = f"s, g = stream(), graph()\n{way}\n" + (
        "e = instantiate(g)\n"
        "p, e2 = Params(flags=UPLOAD, stream=s), pointer()\n"
        "uploaded = cuda.cuGraphInstantiateWithParams(byref(e2), g, byref(p))\n"
        "answer(r=[cuda.cuGraphLaunch(e, s), cuda.cuGraphUpload(e, s), uploaded], why=p.result,\n"
        "       left=[reserved(), charged()])\n"
    )
    got = ask(code)
    assert got["r"] == [2, 2, 2]
    assert got["why"] == 1, "CUDA_GRAPH_INSTANTIATE_ERROR"
    assert got["left"] == [0, 0]


def test_an_updated_executable_needs_what_its_new_graph_needs(ask: Ask) -> None:
    got = ask("""
s, small, large = stream(), graph(), graph()
node, at = alloc(small, GIB); free(small, at, node)
node, at = alloc(large, 5 * GIB); free(large, at, node)
e = instantiate(small)
first = cuda.cuGraphLaunch(e, s)
ok(cuda.cuGraphExecUpdate_v2(e, large, byref((c.c_uint64 * 8)())))
answer(first=first, then=cuda.cuGraphLaunch(e, s), charged=charged())
""")
    assert (got["first"], got["then"]) == (0, 2)
    assert got["charged"] <= GIB


def test_graphs_that_do_not_fit_beside_each_other_run_one_after_the_other(ask: Ask) -> None:
    """The stream is waited for, and the device takes back what the first one left."""
    got = ask("""
s, execs, most = stream(), [], 0
for n in (3, 2, 3):
    g = graph()
    node, at = alloc(g, n * GIB)
    free(g, at, node)
    execs.append(instantiate(g))
codes = []
for _ in range(3):
    for e in execs:
        codes.append(cuda.cuGraphLaunch(e, s))
        most = max(most, charged(), reserved())
answer(codes=codes, most=most)
""")
    assert got["codes"] == [0] * 9
    assert got["most"] <= 4 * GIB


def test_a_graph_without_memory_nodes_asks_the_device_nothing(ask: Ask) -> None:
    got = ask("""
s, g = stream(), graph()
ok(cuda.cuGraphAddEmptyNode(byref(pointer()), g, None, size(0)))
e = instantiate(g)
ok(cuda.cuGraphLaunch(e, s))
answer(charged=charged())
""")
    assert got["charged"] == 0


def test_a_part_of_a_device_is_charged_as_the_device(ask: Ask) -> None:
    """Locality domains of CUDA 13.4: the low byte of the location's id is the device."""
    got = ask("""
class Prop(c.Structure):
    _fields_ = [("type", c.c_int), ("handles", c.c_int), ("location", Location), ("win32", pointer),
                ("flags", c.c_ubyte * 8)]
prop, handle = Prop(1, 0, Location(6, 0x100)), u64()
answer(r=cuda.cuMemCreate(byref(handle), size(8 * GIB), byref(prop), u64(0)))
""")
    assert got["r"] == 2, "refused before the driver is asked, which knows no such location here"
