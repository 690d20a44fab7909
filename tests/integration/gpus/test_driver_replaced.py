"""A driver package that is replaced under running jobs: they map the old file still, which is no foreign driver; a copy
of it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.ebpf import host as ebpf_host
from nodeagent.shell.watch.watch import MAPS_EVERY_S
from tests.kit.held import looked, rows
from tests.kit.node import Node, until
from tests.kit.places import SIM, TENANT
from tests.kit.workplace import workplace

DRIVER = "libcuda.so.1"
NO_EBPF = '[ebpf]\nenabled = "off"\n'
EBPF = '[ebpf]\nenabled = "on"\ndevices = "1:5"\n'
each_way = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(NO_EBPF, id="by name"),
        pytest.param(
            EBPF,
            id="by eBPF",
            marks=[
                pytest.mark.faults,
                pytest.mark.root,
                pytest.mark.skipif(
                    os.geteuid() != 0 or bool(ebpf_host.missing()),
                    reason="THE KERNEL'S WATCH IS NOT TESTED HERE: `sluice doctor` says why",
                ),
            ],
        ),
    ],
)


class NodeWithDriver(Node):
    """Its driver is a file of its own, which may be replaced."""

    @property
    def driver(self) -> Path:
        return self.directory / "driver" / DRIVER

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**{"SLUICE_DRIVER": str(self.driver), **more})

    def on_the_driver(self) -> dict[str, str]:
        return self.environment(LD_LIBRARY_PATH=f"{self.driver.parent}:{SIM}")

    def install(self, release: bytes) -> int:
        """Install a driver as dpkg does: beside the old one, and renamed. Returns the inode."""
        self.driver.parent.mkdir(exist_ok=True)
        new = self.driver.with_name(f"{DRIVER}.dpkg-new")
        new.write_bytes((SIM / DRIVER).read_bytes() + release)
        new.chmod(0o755)
        new.replace(self.driver)
        return self.driver.stat().st_ino


@pytest.fixture
def node(settings: str) -> Iterator[NodeWithDriver]:
    with workplace() as directory:
        made = NodeWithDriver(directory, settings=settings)
        try:
            made.install(b"535")
            made.start()
            if settings == EBPF:
                until("the programs run", lambda: "sluice_ebpf_up 1" in made.metrics(), 60)
            yield made
        finally:
            made.stop()


def foreign(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = node.cli_json("events", "--kind", "foreign_libcuda")
    return found


def maps(pid: int, what: str) -> bool:
    return what in Path(f"/proc/{pid}/maps").read_text()


def copy_user(node: NodeWithDriver, directory: Path) -> subprocess.Popen[str]:
    """On a driver of its own, which is a copy of the node's."""
    directory.mkdir()
    shutil.copy2(node.driver, directory / DRIVER)  # with its times, too
    return subprocess.Popen(
        [TENANT, "--warm", "0", "--seconds", "600"],
        env={**node.on_the_driver(), "LD_LIBRARY_PATH": f"{directory}:{SIM}"},
        stdout=subprocess.DEVNULL,
        text=True,
    )


@each_way
def test_the_driver_from_before_an_update_is_no_foreign_one(
    node: NodeWithDriver, tmp_path: Path
) -> None:
    running = ("--warm", "0", "--seconds", "600")
    old = [
        node.run_tenant("granted", *running, flags=("--gpumem", "1Gi")).process,
        node.run_bare("without one", *running).process,
    ]
    before = node.driver.stat().st_ino
    until("they use the driver", lambda: all(maps(one.pid, f" {before} ") for one in old))
    looked(node)
    assert before in [row["inode"] for row in rows(node, "driver_files")]
    assert node.install(b"550") != before
    until("it is theirs no more", lambda: maps(old[1].pid, "(deleted)"))
    new = node.run_bare("on the new one", *running).process
    copier = copy_user(node, tmp_path / "a")
    try:
        until("a copy is foreign", lambda: [one["pid"] for one in foreign(node)] == [copier.pid])
        # Longer than between two looks at the mappings of one process.
        end_s = time.monotonic() + MAPS_EVERY_S + 1.0
        while time.monotonic() < end_s:
            assert [one["pid"] for one in foreign(node)] == [copier.pid]
            time.sleep(1.0)
        assert all(one.poll() is None for one in (*old, new))

        # A daemon that never saw the old file knows it from the ledger.
        node.kill_daemon()
        node.start()
        until("a copy is foreign again", lambda: [o["pid"] for o in foreign(node)] == [copier.pid])
        looked(node, 5)
        (event,) = foreign(node)
        assert json.loads(event["evidence"])["library"] == str(tmp_path / "a" / DRIVER)
    finally:
        copier.kill()
        copier.wait(60)


@pytest.mark.parametrize("settings", [NO_EBPF], ids=["by name"])
def test_a_copy_with_an_old_drivers_inode_is_foreign_all_the_same(
    node: NodeWithDriver, tmp_path: Path
) -> None:
    """File systems use inodes again. Size, times, owner or generation differ; here the size."""
    looked(node)
    (row, *_) = [
        row
        for row in rows(node, "driver_files")
        if row["inode"] == node.driver.stat().st_ino
    ]  # fmt: skip
    inode = row["inode"]
    keep = tmp_path / DRIVER
    node.driver.rename(keep)  # the very inode, under a name that is not the node's
    with keep.open("ab") as file:
        file.write(b"not the same")
    assert keep.stat().st_ino == inode or keep.stat().st_dev != row["device"]
    node.install(b"550")
    process = subprocess.Popen(
        [TENANT, "--warm", "0", "--seconds", "600"],
        env={**node.on_the_driver(), "LD_LIBRARY_PATH": f"{tmp_path}:{SIM}"},
        stdout=subprocess.DEVNULL,
    )
    try:
        until("it is named", lambda: [one["pid"] for one in foreign(node)] == [process.pid])
    finally:
        process.kill()
        process.wait(60)
