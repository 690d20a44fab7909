"""cuGetProcAddress: for every wrapped function, version and stream flavour, the one right wrapper.

The drivers are tests/interpose/driver/name_driver.c: one that answers with its exports (all real ones do), one that answers
with functions it does not export, one without cuGetProcAddress. What a request means is worked out here anew, from
interpose/driver/cuda_symbols.txt.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpose import regions, symbols
from tests.interpose.symbols import Symbol

SYMBOLS = symbols.driver_symbols()
HOOKS = symbols.hooks()
BASES = sorted({SYMBOLS[name].base for name in HOOKS})
LEGACY, PER_THREAD = 1, 2
NEWEST = max(s.since for s in SYMBOLS.values())

ASK = """
requests = json.load(open(os.environ["TEST_REQUESTS"]))
assert cuda.cuInit(0) == 0
addresses = {ctypes.cast(getattr(cuda, n), ctypes.c_void_p).value: n for n in requests["exports"]}
with open("/proc/self/maps") as f:
    driver = ctypes.CDLL(next(line.split(maxsplit=5)[5].strip() for line in f if "name_driver" in line))
theirs = {ctypes.cast(getattr(driver, n), ctypes.c_void_p).value: "driver:" + n
          for n in requests["exports"] if hasattr(driver, n)}
answers = []
for entry, symbol, version, flags in requests["ask"]:
    pfn, status = ctypes.c_void_p(0x1234), ctypes.c_int(-1)
    args = [symbol.encode(), byref(pfn), version, u64(flags)]
    r = getattr(cuda, entry)(*args, *([byref(status)] if "_v2" in entry else []))
    no = (r, pfn.value, status.value in (1, 2)) == (0, None, True) if "_v2" in entry else (
        (r, pfn.value) == (500, 0x1234))
    if r or not pfn.value:
        answers.append(None if no else f"neither yes nor no: {r} {pfn.value} {status.value}")
    else:
        answers.append(addresses.get(pfn.value) or theirs.get(pfn.value) or "unknown")
answer(answers=answers)
"""

Request = tuple[str, str, int, int]


def ask(tmp_path: Path, driver: str, requests: list[Request]) -> list[str | None]:
    import json

    (library,) = regions.build(f"libname_driver_{driver}.so")
    region = regions.Region(tmp_path / "grant", driver=library)
    question = tmp_path / "requests.json"
    question.write_text(json.dumps({"exports": sorted(SYMBOLS), "ask": requests}))
    answers: list[str | None] = regions.tenant(region, ASK, TEST_REQUESTS=str(question))["answers"]
    return answers


def meaning(base: str, version: int, per_thread: bool) -> Symbol | None:
    """The newest form the version has, of that the per-thread flavour if it is wanted and exists."""
    forms = [
        s
        for s in SYMBOLS.values()
        if s.base == base and s.since <= version and (per_thread or not s.per_thread)
    ]
    return max(forms, key=lambda s: (s.form, s.per_thread), default=None)


def versions_of(base: str) -> list[int]:
    edges = {s.since for s in SYMBOLS.values() if s.base == base}
    return sorted({edge + d for edge in edges for d in (-10, 0, 10)} | {11030, 12000, 13000, 13020})


def entries(driver: str) -> tuple[tuple[str, bool], ...]:
    """(entry point, per-thread by default)"""
    plain = (("cuGetProcAddress", False), ("cuGetProcAddress_v2", False))
    return (*plain, ("cuGetProcAddress_v2_ptsz", True))


@pytest.mark.parametrize("driver", ["exports", "private", "absent"])
def test_every_wrapped_name_in_every_version_and_flavour_is_its_wrapper(
    tmp_path: Path, driver: str
) -> None:
    requests: list[Request] = []
    wanted: list[str | None] = []
    for base in BASES:
        if driver == "absent" and base == "cuGetProcAddress":
            continue  # such a driver's programs do not ask for it
        for version in versions_of(base):
            for entry, default in entries(driver):
                for flags in (0, LEGACY, PER_THREAD):
                    symbol = meaning(base, version, flags == PER_THREAD or (default and not flags))
                    requests.append((entry, base, version, flags))
                    wanted.append(symbol.name if symbol else None)
    got = ask(tmp_path, driver, requests)
    wrong = [f"{r}: {g}, not {w}" for r, g, w in zip(requests, got, wanted, strict=True) if g != w]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(requests)}"
    assert len(requests) > 3000


@pytest.mark.parametrize("driver", ["exports", "absent"])
def test_what_is_not_wrapped_comes_from_the_driver_untouched(tmp_path: Path, driver: str) -> None:
    bases = sorted({s.base for s in SYMBOLS.values()} - set(BASES))
    requests: list[Request] = []
    wanted: list[str | None] = []
    for base in bases:
        for flags in (LEGACY, PER_THREAD):
            symbol = meaning(base, NEWEST, flags == PER_THREAD)
            assert symbol, base
            requests.append(("cuGetProcAddress_v2", base, NEWEST, flags))
            wanted.append("driver:" + symbol.name)
    assert ask(tmp_path, driver, requests) == wanted


@pytest.mark.parametrize("driver", ["exports", "absent"])
@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "cuMemAlloc", "cuLaunchKernel_ptsz"])
def test_a_name_with_a_suffix_means_that_entry_point_or_nothing(
    tmp_path: Path, driver: str, name: str
) -> None:
    (got,) = ask(tmp_path, driver, [("cuGetProcAddress_v2", name, 2000, LEGACY)])
    # real drivers know base names only; the exact name is for those that have nothing but exports
    assert got == (name if driver == "absent" or name == "cuMemAlloc" else None)


def test_a_newer_form_of_a_guarded_function_is_absent(tmp_path: Path) -> None:
    """The stub exports a cuMemCreate_v7 since version 14000, which has no hook."""
    region = regions.Region(tmp_path / "grant")
    got = regions.tenant(
        region,
        """
        init()
        def ask(name, version):
            pfn, status = ctypes.c_void_p(), ctypes.c_int(-1)
            r = cuda.cuGetProcAddress_v2(name, byref(pfn), version, u64(0), byref(status))
            return [r, pfn.value is not None, status.value]
        first = ctypes.c_void_p(0x1234)
        answer(known=ask(b"cuMemCreate", 13000), newer=ask(b"cuMemCreate", 14000),
               future=ask(b"cuStubFuture", 13000), nothing=ask(b"cuNothing", 13000),
               first=[cuda.cuGetProcAddress(b"cuMemCreate", byref(first), 14000, u64(0)), first.value])
        """,
    )
    assert got["known"] == [0, True, 0]
    assert got["newer"] == [0, False, 2], "as a driver that does not have it yet"
    assert got["first"] == [500, 0x1234], "the first form leaves the pointer alone"
    assert got["future"] == [0, True, 0]
    assert got["nothing"] == [0, False, 1]
    assert unknown(region) == (1, 0), "the unknown function; what is withheld is no gap"


def unknown(region: regions.Region) -> tuple[int, int]:
    slots = region.usage.slot
    return sum(s.unknown_symbols for s in slots), sum(s.unknown_tables for s in slots)


ASK_NEXT = """
        init()
        table, pfn, status = ctypes.c_void_p(0x1234), ctypes.c_void_p(), ctypes.c_int(-1)
        def ask(name, version):
            return cuda.cuGetProcAddress_v2(name, byref(pfn), version, u64(0), byref(status))
        def known(start):
            return cuda.cuGetExportTable(byref(table), bytes.fromhex(start) + bytes(12))
"""


@pytest.mark.parametrize(
    ("driver", "asked", "counted"),
    [(13050, 14000, 1), (14000, 14000, 0), (14000, 13050, 1)],
    ids=[
        "none newer than the lists",
        "newer driver, newer version",
        "newer driver, listed version",
    ],
)
def test_what_is_newer_than_the_lists_on_a_newer_driver_is_no_gap(
    tmp_path: Path, driver: int, asked: int, counted: int
) -> None:
    region = regions.Region(tmp_path / "grant")
    name = "cuStubNext" if asked > 13050 else "cuStubFuture"
    regions.tenant(
        region,
        ASK_NEXT + f"        answer(r=ask(b'{name}', {asked}))\n",
        {"STUB_VERSION": str(driver)},
    )
    assert unknown(region) == (counted, 0)


def test_known_tables_are_no_gap_and_unknown_ones_are_counted_as_tables(tmp_path: Path) -> None:
    """The stub has those of cuBLAS and CUPTI, and one whose identifier begins with 77."""
    region = regions.Region(tmp_path / "grant")
    got = regions.tenant(
        region,
        ASK_NEXT + "        answer(r=[known('21318c60'), known('7cb63f9b')])\n",
    )
    assert got["r"] == [0, 0]
    assert unknown(region) == (0, 0)
    got = regions.tenant(
        region,
        ASK_NEXT
        + "        r = known('77000000')\n"
        + "        answer(r=r, none=known('01010101'), table=table.value)\n",
    )
    assert (got["r"], got["none"], got["table"]) == (0, 1, None)
    assert unknown(region) == (0, 1)


def test_hooks_and_forwards_are_all_of_the_driver_and_agree_about_versions() -> None:
    forwards = symbols.listed("driver/forward.def", "FORWARD")
    own_calls = symbols.listed("driver/hooks.def", "DRIVER_ONLY")
    everything = [*HOOKS, *forwards, *own_calls]
    assert sorted(everything) == sorted(symbols.exported()), "each symbol in exactly one list"
    assert {n: h.since for n, h in HOOKS.items()} == {n: SYMBOLS[n].since for n in HOOKS}


def test_no_function_is_wrapped_in_some_of_its_forms_only() -> None:
    half = sorted(n for n, s in SYMBOLS.items() if s.base in BASES and n not in HOOKS)
    assert not half, "a program that asks for such a form is not accounted"
