"""A real daemon in a directory of its own, and tenants under its grants."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeagent import native
from nodeagent.adapters.api.client import Client
from nodeagent.adapters.api.wire import Wire
from tests.kit.places import REPO


def until(what: str, condition: Callable[[], Any], deadline_s: float = 60.0) -> Any:
    """Polls a real condition; what it waited for is in the failure."""
    end_s = time.monotonic() + deadline_s
    while True:
        began_s = time.monotonic()
        value = condition()
        if value:
            return value
        now_s = time.monotonic()
        if now_s > end_s:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(min(max(now_s - began_s, 0.005), 0.5))  # half of the time: others need it, too


class Tenant:
    """tests.kit.daemon.tenant under `sluice run`, one command at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self._answer() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, *words: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the tenant ended"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)


class Daemon:
    def __init__(self, directory: Path, extra_config: str = "", module: str = "") -> None:
        self.directory = directory
        self.runtime = directory / "rt"
        self.socket = self.runtime / "sluice.sock"
        self.log = directory / "log"
        self.config = directory / "sluice.toml"
        self.config.write_text(
            f'[daemon]\nruntime_dir = "{self.runtime}"\nstate_dir = "{directory / "st"}"\n'
            f'[ebpf]\nenabled = "off"\n[metrics]\nlisten = "127.0.0.1:0"\n{extra_config}'
        )
        self._module = module or "tests.kit.daemon.fake_node"
        self.process: subprocess.Popen[bytes] | None = None
        self.tenants: list[Tenant] = []

    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLUICE_SOCKET": str(self.socket), "PYTHONPATH": str(REPO)}

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self._module, "--config", str(self.config)],
                stderr=log,
                cwd=REPO,
                env={**self.environment(), **(environment or {})},
            )
        served = self.log.read_text().count(" serving ")
        process = self.process

        def serving() -> bool:
            assert process.poll() is None, self.log.read_text()
            return self.log.read_text().count(" serving ") > served

        until("the daemon serves", serving)

    def kill(self) -> None:
        """Kill the daemon as the out-of-memory killer would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def client(self) -> contextlib.closing[Client]:
        return contextlib.closing(Client(self.socket, Wire(native.locate().wire_descriptors)))

    def sluice(self, *arguments: str, as_nobody: bool = False) -> subprocess.CompletedProcess[str]:
        module = "tests.kit.daemon.as_nobody" if as_nobody else "nodeagent.cli"
        more = {"SLUICE_TEST_NATIVE": str(self._readable_files())} if as_nobody else {}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=REPO,
            env={**self.environment(), **more},
        )

    def _readable_files(self) -> Path:
        """A copy of the native files that every user can read, as an installed package has them:
        the checkout may lie in a home directory of mode 0700."""
        copy = self.directory / "native"
        if not copy.exists():
            files = native.locate()
            for part in (
                files.shim_dir,
                files.preload_library.parent,
                files.wire_descriptors.parent,
            ):
                shutil.copytree(part, copy / part.name)
            shutil.copy(files.region_library, copy)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755)
        return copy

    def run(self, *arguments: str) -> Tenant:
        """A tenant under a grant of its own."""
        tenant = Tenant(
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "nodeagent.cli", "run", *arguments, "--"),
                    *(sys.executable, "-m", "tests.kit.daemon.tenant"),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=REPO,
                env=self.environment(),
            )
        )
        self.tenants.append(tenant)
        return tenant

    def grants(self) -> list[Any]:
        with self.client() as client:
            return client.list_grants()

    def close(self) -> None:
        """Nothing may be left: no grant, no region, no mount, no slot."""
        for tenant in self.tenants:
            tenant.kill()
        if self.process is None or self.process.poll() is not None:
            self.start()
        try:
            until("all grants have ended", lambda: not self.grants())
            until("no region is left", lambda: not list((self.runtime / "grants").iterdir()))
            assert self.stop() == 0, self.log.read_text()
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait(60)
            mounts = Path("/proc/self/mounts").read_text().splitlines()
            left = [line.split()[1] for line in mounts if str(self.directory) in line]
            for mount in left:
                subprocess.run(["umount", "-l", mount], check=False)
            shutil.rmtree(self.directory, ignore_errors=True)
        assert left == []


@contextlib.contextmanager
def daemon(extra_config: str = "", start: bool = True, module: str = "") -> Iterator[Daemon]:
    missing = native.locate().missing()
    if missing:
        pytest.skip(f"not built: {missing[0]}; `make build`")
    made = Daemon(Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp")), extra_config, module)
    if start:
        made.start()
    try:
        yield made
    except BaseException:
        print(made.log.read_text())
        raise
    finally:
        made.close()


def registered(node: Daemon, name: str) -> Tenant:
    """A tenant in a grant of its own, in slot 0 of its region."""
    tenant = node.run("--gpumem", "1Gi", "--cores", "5", "--name", name)
    assert tenant.do("register")["slot"] == 0
    return tenant


def neighbour_is_well(node: Daemon) -> None:
    """Another tenant of this daemon can still register."""
    other = node.run("--gpumem", "1Gi", "--cores", "5")
    assert other.do("register")["error"] == 0
    other.kill()
