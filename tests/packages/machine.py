"""A fresh Debian 12 booted with systemd, in a container of systemd-nspawn without a network."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nodeagent.adapters.ebpf import host as ebpf_host
from tests.kit.places import BUILD, REPO

HOME = "/root/packages"
"""Where the packages lie, as downloaded."""


def until(what: str, condition: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    """Polls a real condition; what it waited for is in the failure."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        if time.monotonic() > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.1)
    return value


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._console = root.with_suffix(".log")
        self._bpffs = root.with_suffix(".bpf")
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._init = 0

    def boot(self) -> None:
        with self._console.open("ab") as console:
            self._nspawn = subprocess.Popen(
                [
                    "systemd-nspawn",
                    "-q",
                    "-D",
                    self.root,
                    "--register=no",
                    "--keep-unit",
                    "--private-network",
                    *self._for_ebpf(),
                    "-b",
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        self._init = until("nspawn has started init", self._child)
        until(
            "the machine is up",
            lambda: (
                self.sh("systemctl is-system-running", check=False).stdout.strip()
                in ("running", "degraded")
            ),
        )

    def _for_ebpf(self) -> list[str]:
        """Arguments that give nspawn back the things that a machine of its own has: the two system
        calls, a bpffs, and headers for the kernel, which is this host's."""
        if ebpf_host.missing():
            return []
        self._bpffs.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "bpf", "bpf", self._bpffs], check=True)
        modules = Path("/lib/modules") / platform.release()
        return [
            "--system-call-filter=bpf perf_event_open",
            f"--bind={self._bpffs}:/sys/fs/bpf",
            *(f"--bind-ro={place}" for place in (modules, Path("/usr/src")) if place.exists()),
        ]

    def _child(self) -> int | None:
        assert self._nspawn is not None
        assert self._nspawn.poll() is None, self._console.read_text(errors="replace")[-2000:]
        pid = self._nspawn.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        # until it has changed its root it is still a copy of nspawn
        ready = [
            int(child)
            for child in children
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd"
        ]
        return ready[0] if ready else None

    def _enter(self, *command: str) -> list[str]:
        inside = [
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME=/root",
            "LC_ALL=C.UTF-8",
            "DEBIAN_FRONTEND=noninteractive",
        ]
        return [
            "nsenter",
            "-t",
            str(self._init),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "--",
            *inside,
            *command,
        ]

    def sh(
        self, script: str, check: bool = True, timeout_s: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """A line of shell in there, in the directory of the packages."""
        done = subprocess.run(
            self._enter("bash", "-c", f"cd {HOME} 2>/dev/null; {script}"),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"{script}: status {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log()}"
            )
        return done

    def start(self, script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self._enter("bash", "-c", f"exec {script}"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    def log(self) -> str:
        return self.sh("journalctl -u sluice -u sluice-queue --no-pager -n 40", check=False).stdout

    def active(self, unit: str) -> bool:
        return self.sh(f"systemctl is-active {unit}", check=False).stdout.strip() == "active"

    def prop(self, unit: str, name: str) -> str:
        return self.sh(f"systemctl show --value -p {name} {unit}").stdout.strip()

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def bring(self, packages: dict[str, Path]) -> None:
        """Copy packages as if downloaded; nothing else is in the directory then."""
        home = self.root / HOME.lstrip("/")
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        for package in packages.values():
            shutil.copy(package, home)

    def stop(self) -> None:
        self._shut_down()
        if self._bpffs.exists():
            subprocess.run(["umount", self._bpffs], check=False, capture_output=True)
            self._bpffs.rmdir()

    def _shut_down(self) -> None:
        nspawn = self._nspawn
        if nspawn is None or nspawn.poll() is not None:
            return
        nspawn.send_signal(signal.SIGTERM)  # an orderly shutdown
        try:
            nspawn.wait(60)
        except subprocess.TimeoutExpired:
            os.kill(self._init, signal.SIGKILL)
            nspawn.wait(10)


def unpack(name: str) -> Path:
    """A fresh root; the archive it comes from is made once."""
    subprocess.run(
        [REPO / "packaging" / "fetch" / "tools.sh", "systemd-nspawn=systemd-container"],
        check=True,
        cwd=REPO,
    )
    archive = BUILD / "test-packages" / "machine.tar"
    subprocess.run(
        [REPO / "packaging" / "release" / "root.sh", "machine", archive],
        check=True,
        timeout=1200,
        cwd=REPO,
    )
    root = BUILD / "test-packages" / name
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    subprocess.run(["tar", "-C", root, "-xf", archive], check=True, timeout=300)
    # No network in there, and what is only recommended is not in the archive.
    (root / "etc/apt/apt.conf.d/90tests").write_text(
        'APT::Install-Recommends "false";\nAcquire::Retries "0";\n'
    )
    return root


@contextlib.contextmanager
def machine(name: str) -> Iterator[Machine]:
    made = Machine(unpack(name))
    try:
        made.boot()
        yield made
    finally:
        made.stop()
        shutil.rmtree(made.root, ignore_errors=True)
