"""Work that bypasses our library: other copies of the driver, launches it did not see, code that
was written over."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf.libraries import LAUNCHERS
from nodeagent.adapters.host import elf
from nodeagent.ports.telemetry import AuditWindow, ForeignLibrary, ProbeAltered, ProcessLaunches
from tests.ebpf.live import LOADERS, MEDDLER, OPTIONS, LiveWatch, live, needs_ebpf
from tests.kit.node import Node, running, until
from tests.kit.places import PRELOAD, REPO, SHIM, SIM, TENANT, preloaded

pytestmark = [needs_ebpf, pytest.mark.root]
DRIVER = SIM / "libcuda.so.1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node")) as node_:
        yield node_


@pytest.fixture(scope="module", params=LOADERS)
def watch(request: pytest.FixtureRequest) -> Iterator[LiveWatch]:
    with live(replace(OPTIONS, loader=request.param)) as running_:
        running_.say(
            running_.watch.known_libraries,
            [str(DRIVER), str(SHIM / "libcuda.so.1"), str(PRELOAD), *kept_copies()],
        )
        yield running_


def kept_copies() -> list[str]:
    return [str(path) for path in Path("/var/lib/sluice-libraries").glob("*/*/*.so*")]


def audited(watch: LiveWatch, pid: int, least: int = 100) -> ProcessLaunches:
    """The process in the first window that saw enough of it."""

    def found() -> ProcessLaunches | None:
        for window in watch.found(AuditWindow):
            for one in window.processes:
                if one.pid == pid and one.driver >= least:
                    return one
        return None

    return until("a window saw it launch", found, 30)


def test_an_honest_tenant_launches_what_it_accounts(node: Node, watch: LiveWatch) -> None:
    tenant = node.run_tenant(
        "honest", *("--kernel-ns", "20000", "--seconds", "600"), flags=("--gpumem", "1Gi")
    )
    try:
        until("it is registered", lambda: (node.grant("honest") or {}).get("processes"))
        watch.say(watch.watch.known_libraries, [str(DRIVER), *kept_copies()])
        watch.say(watch.watch.watch_processes, [tenant.process.pid])
        seen = audited(watch, tenant.process.pid)
        assert seen.shim == pytest.approx(seen.driver, rel=0.02, abs=5)
        foreign = watch.found(ForeignLibrary, lambda e: e.actor.pid == tenant.process.pid)
        assert not foreign
        window = watch.wait(AuditWindow, lambda w: any(p.driver for p in w.processes))
        assert 0 < window.cost_ratio <= OPTIONS.audit_budget_ratio * 1.5
        assert window.file.inode == DRIVER.stat().st_ino
    finally:
        tenant.kill()


def test_launches_without_us_are_seen(node: Node, watch: LiveWatch) -> None:
    bare = node.run_bare("bare", "--kernel-ns", "20000", "--seconds", "600")
    try:
        watch.say(watch.watch.watch_processes, [bare.process.pid])
        seen = audited(watch, bare.process.pid)
        assert seen.shim == 0
    finally:
        bare.kill()


def test_a_copied_driver_is_noticed_by_its_inode(
    node: Node, watch: LiveWatch, tmp_path: Path
) -> None:
    copy = tmp_path / "libcuda.so.1"
    shutil.copyfile(DRIVER, tmp_path / "innocent.so")
    copy.symlink_to("innocent.so")
    process = subprocess.Popen(
        [TENANT, "--kernel-ns", "20000", "--seconds", "600"],
        env={**node.on_the_driver(), "LD_LIBRARY_PATH": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        watch.say(watch.watch.watch_processes, [process.pid])
        event = watch.wait(ForeignLibrary, lambda event: event.actor.pid == process.pid)
        assert event.file.inode == (tmp_path / "innocent.so").stat().st_ino
        assert event.resembles == "driver"
        assert event.path == str(tmp_path / "innocent.so")
        assert audited(watch, process.pid).shim == 0, "its launches are looked at all the same"
        time_told = len(watch.found(ForeignLibrary, lambda e: e.actor.pid == process.pid))
        assert time_told == 1
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("mode", "kind"), [("restore", "restored"), ("patch", "patched")])
def test_code_that_was_written_over_is_noticed(
    node: Node, watch: LiveWatch, mode: str, kind: str
) -> None:
    offset = elf.functions(DRIVER, {"cuLaunchKernel"})["cuLaunchKernel"]
    process = subprocess.Popen(
        [MEDDLER, DRIVER, hex(offset), mode],
        env=node.on_the_driver(),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch.say(watch.watch.watch_processes, [process.pid])
        event = watch.wait(
            ProbeAltered,
            lambda event: event.actor.pid == process.pid and event.symbol == "cuLaunchKernel",
            30,
        )
        assert event.kind == kind
        assert event.file.inode == DRIVER.stat().st_ino
    finally:
        process.kill()
        process.wait()


def test_a_restored_nop_of_our_own_probe_is_noticed(
    node: Node, watch: LiveWatch, tmp_path: Path
) -> None:
    ours = SHIM / "libcuda.so.1"
    probe = next(one for one in elf.probes(ours) if one.name == "launch")
    honest = node.run_bare("driver-user", "--kernel-ns", "20000", "--seconds", "600")
    process = subprocess.Popen(
        [MEDDLER, ours, hex(probe.offset), "restore"],
        # The window at the driver also looks at our library in the driver's users: be one.
        env={**node.on_the_driver(), "LD_PRELOAD": preloaded(DRIVER)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        watch.say(watch.watch.watch_processes, [process.pid, honest.process.pid])
        event = watch.wait(
            ProbeAltered,
            lambda event: event.actor.pid == process.pid and event.symbol == "sluice:launch",
            30,
        )
        assert event.kind == "restored"
    finally:
        process.kill()
        process.wait()
        honest.kill()


def test_every_door_of_the_interposer_is_a_launcher() -> None:
    """A door that is added must be audited, too."""
    named = re.compile(r'^CUresult (cu\w*Launch\w*)\(|__asm__\("(cu\w*Launch\w*)"\)', re.M)
    doors = {
        found[1] or found[2]
        for source in ("compute/launch.c", "graph/graph.c")
        for found in named.finditer((REPO / "interpose" / source).read_text())
    }
    assert {"cuLaunchKernel", "cuGraphLaunch"} <= doors
    assert doors <= set(LAUNCHERS)
    assert set(LAUNCHERS) <= elf.exports(SHIM / "libcuda.so.1")


def test_ids_of_files_do_not_depend_on_their_names(tmp_path: Path) -> None:
    from nodeagent.adapters.ebpf.libraries import Kind, Libraries, classify, file_id

    assert classify(DRIVER) is Kind.DRIVER
    assert classify(SHIM / "libcuda.so.1") is Kind.INTERPOSER
    assert classify(PRELOAD) is Kind.INTERPOSER
    assert classify(Path("/bin/sh")) is Kind.OTHER
    assert classify(tmp_path) is Kind.OTHER
    (tmp_path / "a").write_bytes(b"\x7fELF damaged")
    assert classify(tmp_path / "a") is Kind.OTHER
    os.link(tmp_path / "a", tmp_path / "b")
    assert file_id(tmp_path / "a") == file_id(tmp_path / "b")
    assert file_id(tmp_path / "nothing") is None
    assert Libraries().mapped(os.getpid()) == []
