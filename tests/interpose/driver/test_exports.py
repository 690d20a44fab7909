"""Symbols that the tenant's libraries show to the loader: the driver's and nothing else, on an old
C library."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interpose import regions, symbols
from tests.kit.places import REPO

MARKER = "sluice_interposer_major"
"""Symbol by which a copy of the interposer tells another copy from the real library."""

SANITIZER = "__asan_default_options"
"""Symbol by which gcc's address sanitizer accepts a preloaded library."""

GLIBC_FLOOR = (2, 17)
"""Version in the oldest images for NVIDIA's drivers; docs/install.md supports 2.28."""

LIBRARIES = {
    "libcuda.so.1": regions.BUILD / "shim" / "libcuda.so.1",
    "libnvidia-ml.so.1": regions.BUILD / "shim" / "libnvidia-ml.so.1",
    "libsluice.so": regions.BUILD / "preload" / "libsluice.so",
}
SONAMES = {
    "libcuda.so.1": "libcuda.so.1",
    "libnvidia-ml.so.1": "libnvidia-ml.so.1",
    "libsluice.so": "libcuda.so.1",  # preloaded, it is what the loader finds for that name
}

NOT_IN_A_STRANGERS_PROCESS = {
    *("exit", "_exit", "abort", "signal", "sigaction", "umask", "setenv", "putenv", "unsetenv"),
    *("printf", "puts", "fprintf", "system", "fork", "execve", "setlocale", "chdir", "atexit"),
}


@dataclass(frozen=True)
class Dynamic:
    defined: frozenset[str]
    undefined: dict[str, str]
    """symbol -> version, "" when it has none"""


def dynamic_symbols(library: Path) -> Dynamic:
    out = subprocess.run(
        ["nm", "-D", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    defined, undefined = set(), {}
    for line in out:
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.replace("@@", "@").partition("@")
        if kind in "Uw":
            undefined[name] = version
        else:
            defined.add(name)
    return Dynamic(frozenset(defined), undefined)


def expected_exports(library: str) -> set[str]:
    if library == "libnvidia-ml.so.1":
        return {
            *symbols.listed("nvml/hooks.def", "HOOK"),
            *symbols.listed("nvml/hooks.def", "DRIVER_ONLY"),
            *symbols.listed("nvml/forward.def", "FORWARD"),
            MARKER,
        }
    own = {MARKER, SANITIZER} if library == "libsluice.so" else {MARKER}
    return {*symbols.exported(), *own}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_exactly_the_real_librarys_symbols_are_exported(library: str) -> None:
    exported = dynamic_symbols(LIBRARIES[library]).defined
    expected = expected_exports(library)
    assert len(expected) > 300
    assert not exported - expected, "leaked into every tenant's name space"
    assert not expected - exported, "a program that links to these does not start"


def test_soname_is_the_real_librarys(library: str) -> None:
    out = subprocess.run(
        ["readelf", "-dW", LIBRARIES[library]], capture_output=True, text=True, check=True
    ).stdout
    assert re.findall(r"\(SONAME\).*\[(.*)\]", out) == [SONAMES[library]]
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", out))
    assert needed == {"libc.so.6", "libdl.so.2", "libpthread.so.0"}, (
        "libdl and libpthread by name: before glibc 2.34 the functions are really there"
    )
    assert "BIND_NOW" in out or "NOW" in out
    assert "NODELETE" in out, "dlclose must not unmap code that threads and destructors run"
    assert "TEXTREL" not in out


def test_nothing_newer_than_the_glibc_floor_is_needed(library: str) -> None:
    undefined = dynamic_symbols(LIBRARIES[library]).undefined
    versions = {
        name: tuple(map(int, version.removeprefix("GLIBC_").split(".")))
        for name, version in undefined.items()
        if version
    }
    assert versions
    newer = {n: v for n, v in versions.items() if v > GLIBC_FLOOR}
    assert not newer, "pin them in interpose/attach/oldglibc.h"
    # Versions that no symbol has (GLIBC_ABI_DT_RELR) keep an older loader from it as well.
    out = subprocess.run(
        ["readelf", "-VW", LIBRARIES[library]], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"Name: (\S+)\s+Flags:", out.partition("Version needs")[2]))
    assert needed
    assert needed == {version for version in undefined.values() if version}
    unversioned = {n for n, v in undefined.items() if not v}
    assert unversioned <= {
        "_ITM_deregisterTMCloneTable",
        "_ITM_registerTMCloneTable",
        "__gmon_start__",
    }


def test_nothing_is_called_that_has_no_place_in_a_strangers_process(library: str) -> None:
    undefined = dynamic_symbols(LIBRARIES[library]).undefined
    assert not NOT_IN_A_STRANGERS_PROCESS & set(undefined)


def test_the_region_library_exports_its_interface_only() -> None:
    declared = set(
        re.findall(
            r"^SLUICE_API [^;]*?(sluice_\w+)\(",
            (REPO / "interpose" / "attach" / "region.h").read_text(),
            re.MULTILINE,
        )
    )
    exported = dynamic_symbols(regions.BUILD / "libsluice_region.so").defined
    assert exported == declared
    assert len(declared) > 10


def test_every_function_of_pynvml_is_there() -> None:
    """A list of NVML's functions that is not ours."""
    pynvml = pytest.importorskip("pynvml")
    text = Path(pynvml.__file__).read_text()
    asked = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', text))
    assert len(asked) > 200
    missing = asked - dynamic_symbols(LIBRARIES["libnvidia-ml.so.1"]).defined
    assert not missing


CALL_ALL = """
names = json.load(open(os.environ["TEST_NAMES"]))
assert cuda.cuInit(0) == 0
with open("/proc/self/maps") as f:
    driver = ctypes.CDLL(next(line.split(maxsplit=5)[5].strip() for line in f if "name_driver" in line))
wrong = [n for n in names if not getattr(cuda, n)() == getattr(driver, n)() == getattr(cuda, n)()]
many, f64 = cuda.cuGraphAddDependencies, ctypes.c_double
many.restype = u64
def numbers():
    return many(*(u64(10 ** i) for i in range(9)), *(f64(10.0 ** (9 + i)) for i in range(8)), u64(5))
answer(wrong=wrong, first=numbers(), second=numbers(), float=[
    cuda.cuTexRefSetMipmapLevelBias(None, ctypes.c_float(2.5)) for _ in range(2)])
"""


def test_every_trampoline_reaches_its_own_function_with_all_arguments(tmp_path: Path) -> None:
    """The table of forward.S and the names in driver.c are one list expanded twice: they must not drift."""
    import json

    (driver,) = regions.build("libname_driver_exports.so")
    names = [
        *symbols.listed("driver/forward.def", "FORWARD"),
        *symbols.listed("driver/hooks.def", "DRIVER_ONLY"),
    ]
    real = {"cuDeviceGetCount", "cuDeviceGetUuid_v2"}
    real |= {"cuGraphAddDependencies", "cuTexRefSetMipmapLevelBias"}
    question = tmp_path / "names.json"
    question.write_text(json.dumps([n for n in names if n not in real]))
    region = regions.Region(tmp_path / "grant", driver=driver)
    got = regions.tenant(region, CALL_ALL, TEST_NAMES=str(question))
    assert got["wrong"] == []
    assert got["first"] == got["second"] == 5 * (10**17 - 1) // 9
    assert got["float"] == [10, 10]


needs_clang = pytest.mark.skipif(not shutil.which("clang"), reason="assembles for another machine")


def assembled(source: str, target: str, tmp_path: Path) -> dict[str, str]:
    """symbol -> binding and visibility"""
    out = tmp_path / f"{target}.o"
    done = subprocess.run(
        ["clang", f"--target={target}", "-I", REPO, "-c", REPO / "interpose" / source, "-o", out],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    table = subprocess.run(
        ["readelf", "-sW", out], capture_output=True, text=True, check=True
    ).stdout
    rows = re.findall(
        r"^\s*\d+: \w+\s+\d+ (FUNC|OBJECT|NOTYPE)\s+(GLOBAL|LOCAL)\s+(\w+)\s+(\w+) (\w+)$",
        table,
        re.MULTILINE,
    )
    return {
        name: f"{binding} {visibility} {'undefined' if section == 'UND' else 'defined'}"
        for _, binding, visibility, section, name in rows
        if binding == "GLOBAL"
    }


@needs_clang
@pytest.mark.parametrize("source", ["driver/forward.S", "nvml/forward.S"])
def test_the_trampolines_are_the_same_symbols_on_aarch64(source: str, tmp_path: Path) -> None:
    arm = assembled(source, "aarch64-linux-gnu", tmp_path)
    assert arm == assembled(source, "x86_64-linux-gnu", tmp_path)
    assert arm.pop("trampoline_resolve") == "GLOBAL DEFAULT undefined"
    hooks = symbols.listed(
        "driver/hooks.def" if source == "driver/forward.S" else "nvml/hooks.def", "HOOK"
    )
    exported = {n for n, how in arm.items() if how == "GLOBAL DEFAULT defined"}
    library = "libcuda.so.1" if source == "driver/forward.S" else "libnvidia-ml.so.1"
    assert exported == expected_exports(library) - {*hooks, MARKER}
    assert {f"lazy_{n}" for n in hooks} <= arm.keys() - exported
