"""Removing the package leaves no process frozen and nothing pinned: the maintainer scripts themselves, in a mount namespace
where /run, /var/lib and bpffs are their own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ebpf.daemon import is_up
from tests.ebpf.live import Opener, needs_ebpf
from tests.kit.cgroups import Container, answers, pods
from tests.kit.held import contained, stopped
from tests.kit.node import Node, until
from tests.kit.places import AT_REST, REPO, SLUICE, TENANT
from tests.kit.workplace import workplace

pytestmark = [needs_ebpf, pytest.mark.root]
POD = "1b4e28ba-2fa1-11d2-883f-0000000000d1"
HELD_S = 10.0
DEVICE, DEVICE_PATH = "1:7", "/dev/full"
"""Not the other tests' substitute: a daemon holds every process that opens its device, on the whole host."""
SETTINGS = f'[ebpf]\nenabled = "on"\ndevices = "{DEVICE}"\n[detection]\nbare_metal = "contain"\n'
PLACES = ("/run", "/var/lib")


def prerm() -> str:
    return _through_path((REPO / "packaging/debian/nodeagent/prerm").read_text())


def preun() -> str:
    text = (REPO / "packaging/rpm/sluice.spec").read_text()
    return _through_path(
        text.partition("\n%preun nodeagent\n")[2].partition("\n%postun nodeagent\n")[0]
    )


def _through_path(script: str) -> str:
    """The installed program is called without leaving compiled files; here it is not in /usr/bin."""
    installed = "python3 -I -B /usr/bin/sluice "
    assert installed in script
    return script.replace(installed, "sluice ")


class SystemNode(Node):
    """A node as the package runs it: in the system's directories, which are a namespace's own
    here."""

    def __init__(self, directory: Path) -> None:
        mounts = " && ".join(f"mount -t tmpfs none {place}" for place in PLACES)
        self.holder = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", "sh", "-c"),
                f"{mounts} && mount -t bpf none /sys/fs/bpf && echo up && exec sleep 3600",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout is not None
        assert self.holder.stdout.readline() == "up\n"
        super().__init__(directory, settings=SETTINGS)
        text = (directory / "sluice.toml").read_text()
        ours = text.replace(f"{directory}/run", "/run/sluice")
        (directory / "sluice.toml").write_text(
            ours.replace(f"{directory}/state", "/var/lib/sluice")
        )
        # What the scripts find in their PATH: the program, which finds its settings, and no systemd.
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.program("sluice", f'exec "{SLUICE}" "$@" --config {directory}/sluice.toml')
        self.program("systemctl", "exit 0")

    def program(self, name: str, line: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.bin / name).chmod(0o755)

    @property
    def socket(self) -> Path:
        return Path("/run/sluice/sluice.sock")

    def enter(self, *words: str | Path) -> list[str | Path]:
        return ["nsenter", "--mount", f"--target={self.holder.pid}", *words]

    def start(self) -> None:
        with (self.directory / "daemon.log").open("ab") as log:
            self.daemon = subprocess.Popen(
                self.enter(SLUICE, "serve", "--config", self.directory / "sluice.toml"),
                env=self.on_the_driver(),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        until("the daemon answers and knows its GPUs", self._ready)

    def cli(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.enter(SLUICE, *arguments),
            env=self.environment(),
            text=True,
            capture_output=True,
            check=check,
            timeout=60,
        )

    def sh(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:{os.environ['PATH']}"
        return subprocess.run(
            self.enter("sh", "-c", script, "script", *arguments),
            env={"PATH": path, "PYTHONPATH": str(REPO)},
            text=True,
            capture_output=True,
            check=True,
            timeout=60,
        )

    def stop(self) -> None:
        super().stop()
        self.holder.kill()
        self.holder.wait()


@pytest.fixture
def node() -> Iterator[SystemNode]:
    with workplace() as directory:
        made = SystemNode(directory)
        try:
            made.start()
            until("the programs run", lambda: is_up(made), 60)
            yield made
        finally:
            made.stop()


@pytest.fixture
def place() -> Iterator[dict[str, Container]]:
    with pods("unified", its=f"{POD}/c1") as made:
        yield made


@pytest.mark.parametrize("how_it_ended", ["stopped", "killed"])
@pytest.mark.parametrize(
    ("script", "argument"), [(prerm, "remove"), (preun, "0")], ids=["deb", "rpm"]
)
def test_removal_leaves_nobody_held(
    node: SystemNode,
    place: dict[str, Container],
    script: object,
    argument: str,
    how_it_ended: str,
) -> None:
    assert callable(script)
    running = (TENANT, *AT_REST)
    accomplice = place["its"].run("cat")
    opener = Opener("openat", place["its"].directory, DEVICE_PATH)
    try:
        assert answers(accomplice)
        place["its"].run(*running, environment=node.on_the_driver())
        alone = node.run_bare("alone", *map(str, running[1:])).process
        until("the container is held", place["its"].held, HELD_S)
        until("the process is stopped", lambda: stopped(alone.pid), HELD_S)
        until(
            "all of it is written down",
            lambda: (
                sorted(one["step"] for one in contained(node)) == ["deny_opens", "freeze", "freeze"]
            ),
        )
        until("opens are refused", lambda: "deny-" in node.sh("ls /sys/fs/bpf/sluice").stdout)
        node.stop_daemon() if how_it_ended == "stopped" else node.kill_daemon()
        assert place["its"].held()
        node.program("doctor", f'exec "{SLUICE}" doctor')
        doctor = node.sh("doctor || true").stdout
        assert (
            "GPUs are refused for daemons that do not run: /sys/fs/bpf/sluice (1 cgroup" in doctor
        )

        assert "3 acts of a daemon that does not run are still in force" in doctor

        node.sh(script(), argument)
        assert not place["its"].held()
        assert not stopped(alone.pid)
        assert answers(accomplice)
        until("it may open", lambda: opener.open() == 0)  # the link ends in the kernel's own time
        assert node.sh("ls /sys/fs/bpf").stdout.split() == ["maps.debug", "progs.debug"]
        assert node.sh("ls -d /run/sluice 2>&1 || true").stdout.startswith("ls: ")
    finally:
        place["its"].let_go()
        opener.close()


@pytest.mark.parametrize(
    ("script", "argument"), [(prerm, "upgrade"), (preun, "1")], ids=["deb", "rpm"]
)
def test_an_upgrade_lets_nobody_go(node: SystemNode, script: object, argument: str) -> None:
    assert callable(script)
    alone = node.run_bare("alone", *AT_REST).process
    until("the process is stopped", lambda: stopped(alone.pid), HELD_S)
    until("it is written down", lambda: [one["step"] for one in contained(node)] == ["freeze"])
    node.stop_daemon()
    node.sh(script(), argument)
    assert stopped(alone.pid)
    node.start()
    assert [one["pid"] for one in contained(node)] == [alone.pid]
