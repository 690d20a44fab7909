"""Our libraries as programs get them: the driver's names only, kept apart, never written again."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from nodeagent import native
from nodeagent.adapters import checks as host
from nodeagent.adapters.containers import library_store
from nodeagent.adapters.host import elf
from nodeagent.native import NativeFiles
from tests.kit.places import SHIM, SIM

DRIVERS = {host.DRIVER: str(SIM / host.DRIVER), host.NVML: str(SIM / host.NVML)}
LACKING = {host.DRIVER: "cuMulticastCreate", host.NVML: "nvmlDeviceGetPciInfo_v3"}
"""Symbols that the driver of `older` does not export yet."""


@pytest.fixture
def files() -> NativeFiles:
    return native.locate()


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A driver of an earlier release: the simulator's names without one, and nothing behind them."""
    made = {}
    for soname, lacking in LACKING.items():
        names = exported(SIM / soname)
        assert lacking in names
        folder = tmp_path_factory.mktemp("older")
        source = folder / "names.s"
        source.write_text(
            "".join(f".globl {name}\n{name}: ret\n" for name in sorted(names - {lacking}))
            + '.section .note.GNU-stack,"",@progbits\n'
        )
        path = folder / soname
        subprocess.run(["gcc", "-shared", "-nostdlib", "-o", path, source], check=True)
        made[soname] = str(path)
    return made


def exported(path: str | Path) -> set[str]:
    """Exported symbols as binutils see them."""
    listing = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True)
    return {line.split()[-1] for line in listing.stdout.splitlines()}


@pytest.mark.parametrize("name", DRIVERS)
def test_the_parser_sees_what_binutils_see(name: str) -> None:
    assert elf.exports(SHIM / name) == exported(SHIM / name)
    assert elf.exports(SIM / name) == exported(SIM / name)


def test_a_copy_exports_what_the_driver_does_and_the_marker(
    files: NativeFiles, tmp_path: Path, older: dict[str, str]
) -> None:
    given = library_store.libraries(files, older, tmp_path)
    for path, soname in (
        (given.shim_dir / host.DRIVER, host.DRIVER),
        (given.preload_library, host.DRIVER),
        (given.shim_dir / host.NVML, host.NVML),
    ):
        want = (exported(older[soname]) & exported(SHIM / soname)) | {host.MARKER}
        if path == given.preload_library:
            want |= {"__asan_default_options"}  # interpose/preload/sanitizer.c
        assert exported(path) == want
        assert exported(SHIM / soname) - want, "nothing was there to take out"


def test_the_loader_finds_nothing_under_a_name_the_driver_lacks(
    files: NativeFiles, tmp_path: Path, older: dict[str, str]
) -> None:
    lacking = LACKING[host.DRIVER]
    assert hasattr(ctypes.CDLL(str(SHIM / host.DRIVER)), lacking)
    code = (
        "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]);"
        f"print(hasattr(lib, {lacking!r}), hasattr(lib, 'cuInit'))"
    )
    given = library_store.libraries(files, older, tmp_path)
    done = subprocess.run(
        ["python3", "-c", code, given.shim_dir / host.DRIVER], capture_output=True, text=True
    )
    assert done.stdout == "False True\n", done.stderr


def test_the_same_contents_are_the_same_files(files: NativeFiles, tmp_path: Path) -> None:
    first = library_store.libraries(files, DRIVERS, tmp_path)
    inode = (first.shim_dir / host.DRIVER).stat().st_ino
    again = library_store.libraries(files, DRIVERS, tmp_path)
    assert again == first
    assert (again.shim_dir / host.DRIVER).stat().st_ino == inode
    assert len(list(tmp_path.iterdir())) == 1
    assert first.root.name.startswith(native.version() + "-")


def test_a_damaged_copy_is_replaced_and_what_was_mapped_stays(
    files: NativeFiles, tmp_path: Path
) -> None:
    given = library_store.libraries(files, DRIVERS, tmp_path)
    library = given.shim_dir / host.DRIVER
    with library.open("rb") as mapped:
        library.chmod(0o755)
        os.truncate(library, 1000)
        again = library_store.libraries(files, DRIVERS, tmp_path)
        assert again == given
        assert os.fstat(mapped.fileno()).st_ino != library.stat().st_ino
    assert elf.exports(library)


def test_what_an_earlier_boot_used_goes_and_what_this_one_used_stays(
    files: NativeFiles, tmp_path: Path
) -> None:
    old = tmp_path / "0.0.9-0123456789abcdef"
    used = tmp_path / "0.0.9-fedcba9876543210"
    for place, boot in ((old, "another"), (used, library_store.boot_id())):
        place.mkdir()
        (place / "last-boot").write_text(boot)
    given = library_store.libraries(files, DRIVERS, tmp_path)
    assert set(tmp_path.iterdir()) == {used, given.root}


@pytest.mark.parametrize("why", ["a space in the path", "others may write", "not a directory"])
def test_where_none_can_be_kept_the_packages_own_are_given(
    files: NativeFiles, tmp_path: Path, why: str
) -> None:
    root = tmp_path / ("with space" if "space" in why else "plain")
    if "others" in why:
        root.mkdir()
        root.chmod(0o777)
    if "directory" in why:
        root.write_text("")
    assert library_store.libraries(files, DRIVERS, root) is files


@pytest.mark.parametrize("driver", ["", "/nonexistent/libcuda.so.1", __file__])
def test_a_driver_that_cannot_be_read_takes_nothing_out(driver: str) -> None:
    ours = (SHIM / host.DRIVER).read_bytes()
    assert library_store.fitted(ours, host.DRIVER, driver) == ours


def test_a_library_without_the_entry_point_says_nothing_about_what_is_exported() -> None:
    ours = (SHIM / host.DRIVER).read_bytes()
    assert library_store.fitted(ours, host.DRIVER, str(SIM / host.NVML)) == ours


@pytest.mark.parametrize("length", [0, 10, 63, 64, 200, 4096])
def test_damaged_files_are_refused_not_read_beyond(length: int) -> None:
    data = (SHIM / host.DRIVER).read_bytes()[:length]
    with pytest.raises(elf.NotElf):
        elf.without(data, lambda name: True)


def test_a_32_bit_driver_and_our_own_library_are_not_taken_for_the_driver(tmp_path: Path) -> None:
    narrow, ours, real = (tmp_path / name for name in ("narrow", "ours", "real"))
    for directory in (narrow, ours, real):
        directory.mkdir()
    (narrow / host.DRIVER).write_bytes(b"\x7fELF\x01\x01\x01" + bytes(60))
    (ours / host.DRIVER).symlink_to(SHIM / host.DRIVER)
    (real / host.DRIVER).symlink_to(SIM / host.DRIVER)
    path = f"{narrow}:{ours}:{real}"
    found = host.find_library(host.DRIVER, {"LD_LIBRARY_PATH": path})
    assert found == real / host.DRIVER


def test_an_empty_part_of_the_search_path_is_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / host.DRIVER).symlink_to(SIM / host.DRIVER)
    monkeypatch.chdir(tmp_path)
    found = host.find_library(host.DRIVER, {"LD_LIBRARY_PATH": "/nonexistent:"})
    assert found == tmp_path / host.DRIVER
