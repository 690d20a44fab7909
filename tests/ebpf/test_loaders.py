"""Which loader it is, and what happens when one cannot: for real, each in its process."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent import native
from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.adapters.ebpf.loaders import choose as ebpf_loading
from nodeagent.adapters.ebpf.loaders.choose import LoadFailed, Programs
from nodeagent.adapters.ebpf.loaders.prebuilt import OLD
from nodeagent.adapters.ebpf.loaders.programs import MAPS, PROGRAMS
from nodeagent.ports.telemetry import DeviceOpened, WatchState
from tests.ebpf.live import LOADERS, OPTIONS, LiveWatch, Opener, live, needs_ebpf
from tests.kit.node import until

BUILT = native.locate().bpf_object
needs_both = pytest.mark.skipif(
    bool(ebpf_host.missing("bcc") or ebpf_host.missing("prebuilt")),
    reason="THE CHOICE OF THE LOADER IS NOT TESTED HERE: one of the two is missing",
)
pytestmark = [needs_ebpf, needs_both, pytest.mark.root]


@contextmanager
def loaded(loader: str, prebuilt: Path) -> Iterator[Programs]:
    programs = asyncio.run(ebpf_loading.load(loader, prebuilt))
    try:
        yield programs
    finally:
        for fd in programs.fds.values():
            os.close(fd)


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """An object that says it is not GPL's: the verifier gives it no bpf_probe_read_user()."""
    data = BUILT.read_bytes()
    assert data.count(b"GPL\0") == 1
    file = tmp_path / BUILT.name
    file.write_bytes(data.replace(b"GPL\0", b"BSD\0"))
    return file


@pytest.fixture
def garbage(tmp_path: Path) -> Path:
    file = tmp_path / BUILT.name
    file.write_bytes(b"no ELF file\n" * 100)
    return file


@pytest.fixture
def of_another_version(tmp_path: Path) -> Path:
    """An object file of another version, as in a build directory that was not built again."""
    file = tmp_path / BUILT.name
    file.write_bytes(BUILT.read_bytes().replace(b"driver_launches\0", b"driver_lunches_\0"))
    return file


@pytest.mark.parametrize("loader", [*LOADERS, "auto"])
def test_each_hands_over_the_same(loader: str) -> None:
    with loaded(loader, BUILT) as programs:
        assert list(programs.fds) == [*PROGRAMS, *MAPS]
        assert programs.loader == ("prebuilt" if loader == "auto" else loader)
        assert programs.instead == ""


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("refused", "the kernel rejected watch.bpf.o: Invalid argument"),
        ("garbage", "libbpf cannot open"),
        ("of_another_version", "of another version: no driver_launches in them"),
        ("/nonexistent/watch.bpf.o", "are not at /nonexistent/watch.bpf.o"),
    ],
)
def test_bcc_steps_in_and_it_is_said_why(
    file: str, reason: str, request: pytest.FixtureRequest
) -> None:
    path = Path(file) if file.startswith("/") else request.getfixturevalue(file)
    with loaded("auto", path) as programs:
        assert programs.loader == "bcc"
        assert reason in programs.instead
        assert list(programs.fds) == [*PROGRAMS, *MAPS]
    with pytest.raises(LoadFailed, match=reason):
        asyncio.run(ebpf_loading.load("prebuilt", path))


def test_programs_for_old_kernels_step_in_before_bcc(refused: Path) -> None:
    """Linux before 6.1 refuses the first object for a helper it does not give; this kernel is made to."""
    shutil.copy(BUILT.with_name(OLD), refused.with_name(OLD))
    with loaded("auto", refused) as programs:
        assert (programs.loader, programs.instead) == ("prebuilt", "")
        assert list(programs.fds) == [*PROGRAMS, *MAPS]


def test_programs_for_old_kernels_tell_the_same() -> None:
    """They read pid and name from the task, by the kernel's BTF."""
    with live(replace(OPTIONS, loader="prebuilt", prebuilt=str(BUILT.with_name(OLD)))) as watch:
        opener = Opener("openat")
        try:
            assert opener.open() == 0
            event = watch.wait(DeviceOpened, lambda event: event.actor.pid == opener.pid)
        finally:
            opener.close()
        assert (event.actor.command, event.actor.uid) == ("opener", os.getuid())


def test_the_verifiers_word_is_kept(refused: Path) -> None:
    with pytest.raises(LoadFailed, match="cannot call GPL-restricted function"):
        asyncio.run(ebpf_loading.load("prebuilt", refused))


def test_where_neither_can_both_reasons_are_told(
    garbage: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """bcc's own variable: headers that are none."""
    (tmp_path / "include" / "linux").mkdir(parents=True)
    (tmp_path / "include" / "linux" / "kconfig.h").write_text("#error these are no headers\n")
    monkeypatch.setenv("BCC_KERNEL_SOURCE", str(tmp_path))
    with pytest.raises(LoadFailed, match=r"(?s)libbpf cannot open.*; and with bcc: .*no headers"):
        asyncio.run(ebpf_loading.load("auto", garbage))


def test_the_status_says_who_loaded_and_why(garbage: Path) -> None:
    with live(replace(OPTIONS, prebuilt=str(garbage))) as watch:
        status = watch.watch.status()
        assert (status.state, status.loader) == (WatchState.RUNNING, "bcc")
        assert str(garbage) in status.instead


def test_the_one_that_is_demanded_is_not_replaced(garbage: Path) -> None:
    watch = LiveWatch(replace(OPTIONS, loader="prebuilt", prebuilt=str(garbage)))
    with closing(watch):
        watch.begin()
        until("it is tried again", lambda: watch.watch.status().restarts_total > 1)
        status = watch.watch.status()
        assert status.state in (WatchState.DOWN, WatchState.STARTING)
        assert status.loader == ""
        down = until("it is down", lambda: watch.watch.status().reason)
        assert "libbpf cannot open" in down
