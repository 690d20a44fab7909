"""Properties of the price of a launch shape that was never timed (interpose/compute/rules/kin.h)."""

from __future__ import annotations

import ctypes
import itertools
from ctypes import POINTER, byref, c_int, c_uint64

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.places import GATE_PROBE
from tests.properties.test_gate import Shape

functions = itertools.count(0x1000)
grids = st.tuples(st.integers(1, 2**20), st.integers(1, 64), st.integers(1, 8))
blocks = st.sampled_from((32, 128, 256, 1024))
times_ns = st.integers(1_000, 50_000_000)


def _load() -> ctypes.CDLL:
    lib = ctypes.CDLL(str(GATE_PROBE))
    lib.probe_kin_ns.argtypes = [c_uint64, POINTER(Shape), POINTER(c_int)]
    lib.probe_kin_ns.restype = c_uint64
    lib.probe_kin_learn.argtypes = [c_uint64, POINTER(Shape), c_uint64, c_int]
    lib.probe_kin_learn.restype = None
    lib.probe_kin_forget_all.restype = None
    return lib


KIN = _load()


def shape(grid: tuple[int, int, int], block: int) -> Shape:
    return Shape((ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(block, 1, 1), 0)


def threads(grid: tuple[int, int, int], block: int) -> int:
    return grid[0] * grid[1] * grid[2] * block


def price(function: int, of: Shape) -> tuple[int, bool]:
    near = c_int()
    ns = int(KIN.probe_kin_ns(function, byref(of), byref(near)))
    return ns, bool(near.value)


def learn(function: int, of: Shape, ns: int, shared: bool = False) -> None:
    KIN.probe_kin_learn(function, byref(of), ns, shared)


@given(grid=grids, block=blocks)
def test_a_function_that_was_never_timed_has_no_price(
    grid: tuple[int, int, int], block: int
) -> None:
    assert price(next(functions), shape(grid, block)) == (0, False)


@given(grid=grids, block=blocks, ns=times_ns)
def test_a_shape_of_the_same_size_has_the_time_of_the_other(
    grid: tuple[int, int, int], block: int, ns: int
) -> None:
    function = next(functions)
    learn(function, shape(grid, block), ns)
    assert price(function, shape((grid[1], grid[0], grid[2]), block)) == (ns, True)


@given(first=grids, second=grids, block=blocks, ns=times_ns, growth=st.floats(0, 1))
def test_a_new_size_is_not_priced_below_a_time_that_grows_with_it(
    first: tuple[int, int, int], second: tuple[int, int, int], block: int, ns: int, growth: float
) -> None:
    """The time grows with the threads, at most in proportion."""
    function = next(functions)
    learn(function, shape(first, block), ns)
    factor = threads(second, block) / threads(first, block)
    true_ns = ns * factor**growth
    found, near = price(function, shape(second, block))
    if near:  # of the same octave
        assert found == ns
    else:
        assert found >= 0.99 * true_ns - 1


@given(grid=grids, block=blocks, ns=st.integers(1_000, 20_000_000))
def test_times_that_no_size_explains_leave_a_size_without_a_price(
    grid: tuple[int, int, int], block: int, ns: int
) -> None:
    function = next(functions)
    learn(function, shape(grid, block), ns)
    learn(function, shape(grid, block), 5 * ns + 100_001)
    assert price(function, shape(grid, block)) == (0, True)


@given(ns=times_ns, factor=st.floats(1.3, 50))
def test_upper_bounds_that_are_all_too_high_raise_a_price(ns: int, factor: float) -> None:
    """Beside other grants a time includes their parts: one bound says nothing, the least of eight does."""
    function, of = next(functions), shape((64, 1, 1), 256)
    learn(function, of, ns)
    for _ in range(7):
        learn(function, of, int(ns * factor), shared=True)
        assert price(function, of) == (ns, True)
    learn(function, of, int(ns * factor), shared=True)
    assert price(function, of)[0] != ns


@given(ns=times_ns, bounds=st.lists(st.floats(1, 50), min_size=1, max_size=64))
def test_upper_bounds_do_not_change_a_price_that_some_confirm(ns: int, bounds: list[float]) -> None:
    function, of = next(functions), shape((64, 1, 1), 256)
    learn(function, of, ns)
    for bound in bounds:
        for factor in (bound, 1, bound, 1):
            learn(function, of, int(ns * factor), shared=True)
    assert price(function, of) == (ns, True)


def test_after_an_unload_no_price_is_left() -> None:
    function, of = next(functions), shape((64, 1, 1), 256)
    learn(function, of, 1_000)
    KIN.probe_kin_forget_all()
    assert price(function, of) == (0, False)
