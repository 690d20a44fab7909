"""A whole node on this machine: simulated GPUs, the real daemon, tenants under `sluice run`.

Used by the demo, the benchmarks and the integration tests. Everything lives in one directory and dies with it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nodeagent import native
from nodeagent.adapters.api.client import Client, Unreachable
from nodeagent.adapters.api.wire import Wire
from nodeagent.ports.clients import Refused
from sluicecommon.plain import write_all_fields
from tests.kit.leftovers import clear
from tests.kit.measure import ahead
from tests.kit.places import BUILD, REPO, SHIM, SIM, SLUICE, TENANT
from tests.kit.workplace import free_port

T = TypeVar("T")


@functools.cache
def _wire() -> Wire:
    return Wire(native.locate().wire_descriptors)


SHORTEST_REST_S, LONGEST_REST_S = 0.02, 0.5
PATIENCE = float(os.environ.get("SLUICE_TEST_PATIENCE", "1"))
"""How many times longer a condition is waited for, by a run that has to leave the processors to others."""


class NodeError(Exception):
    """The node did not do what a scene needed; the text says what."""


def until(what: str, probe: Callable[[], T | None], deadline_s: float = 60.0) -> T:
    """The first true answer of `probe`. Polls a condition; never assumes how long one takes: the deadline is for a
    condition that never comes, and costs nothing where it comes. Half of the time it rests: a probe that is a run of a
    command would otherwise have a processor to itself while others are waited for."""
    deadline_s *= PATIENCE
    end = time.monotonic() + deadline_s
    last: BaseException | None = None
    while (began := time.monotonic()) < end:
        try:
            answer = probe()
            if answer:
                return answer
        except (OSError, subprocess.CalledProcessError, ValueError, KeyError) as error:
            last = error
        time.sleep(min(max(time.monotonic() - began, SHORTEST_REST_S), LONGEST_REST_S))
    raise NodeError(
        f"gave up after {deadline_s:g} s waiting until {what}" + (f" ({last})" if last else "")
    )


@dataclass
class Tenant:
    """One program under (or, for comparison, without) a grant."""

    name: str
    process: subprocess.Popen[str]

    def report(self, after_ns: int = 0) -> float:
        """The share in its next report (`--report`), or in the next one after that CLOCK_MONOTONIC time."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            told = json.loads(line)
            if told["at_ns"] >= after_ns:
                return float(told["share_ratio"])
        raise NodeError(f"{self.name}: exit {self.process.wait()} and no more reports")

    def result(self, timeout_s: float = 120.0) -> dict[str, Any]:
        """The last JSON object the tenant program printed."""
        out, _ = self.process.communicate(timeout=timeout_s)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        if not lines:
            raise NodeError(
                f"{self.name}: exit {self.process.returncode} and no result: {out[-500:]}"
            )
        answer: dict[str, Any] = json.loads(lines[-1])
        answer["reports"] = [json.loads(line) for line in lines[:-1]]
        answer["exit"] = self.process.returncode
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Node:
    """`gpus` as SLUICE_SIM_GPUS spells them, "" = the machine's own; `settings` is more TOML for
    the daemon."""

    directory: Path
    gpus: str = "2xh100-80gb"
    settings: str = ""
    metrics_port: int = 0
    daemon: subprocess.Popen[bytes] | None = None
    tenants: list[Tenant] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.metrics_port = self.metrics_port or free_port()
        (self.directory / "sluice.toml").write_text(
            f'[daemon]\nruntime_dir = "{self.directory}/run"\nstate_dir = "{self.directory}/state"\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics_port}"\n{self._ebpf()}{self.settings}\n'
        )

    def _ebpf(self) -> str:
        """Off unless a test wants it: compiling its programs takes seconds for each daemon."""
        return "" if "[ebpf]" in self.settings else '[ebpf]\nenabled = "off"\n'

    @property
    def socket(self) -> Path:
        return self.directory / "run" / "sluice.sock"

    def environment(self, **more: str) -> dict[str, str]:
        keep = {
            k: v for k, v in os.environ.items() if not k.startswith(("LD_", "CUDA_", "SLUICE_"))
        }
        keep |= {"SLUICE_SOCKET": str(self.socket), "PYTHONPATH": str(REPO)}
        if self.gpus:
            keep |= {
                "SLUICE_SIM_DIR": str(self.directory / "gpu"),
                "SLUICE_SIM_GPUS": self.gpus,
                "SLUICE_DRIVER": str(SIM / "libcuda.so.1"),
            }
        elif "LD_LIBRARY_PATH" in os.environ:
            keep["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]  # where the driver may be
        return keep | more

    def on_the_driver(self) -> dict[str, str]:
        """The environment of a program that talks to the driver itself."""
        return self.environment(**({"LD_LIBRARY_PATH": str(SIM)} if self.gpus else {}))

    def start(self) -> None:
        log = (self.directory / "daemon.log").open("ab")
        self.daemon = subprocess.Popen(
            [SLUICE, "serve", "--config", self.directory / "sluice.toml"],
            env=self.on_the_driver(),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
        until("the daemon answers and knows its GPUs", self._ready)

    def _ready(self) -> bool:
        if self.daemon is not None and self.daemon.poll() is not None:
            raise NodeError(
                f"the daemon ended: {(self.directory / 'daemon.log').read_text()[-2000:]}"
            )
        return bool(self.info()["gpus"])

    def kill_daemon(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def cli(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [SLUICE, *arguments],
            env=self.environment(),
            text=True,
            capture_output=True,
            check=check,
            timeout=120,
        )

    def cli_json(self, *arguments: str) -> Any:
        return json.loads(self.cli(*arguments, "--json").stdout)

    def info(self) -> dict[str, Any]:
        answer: dict[str, Any] = self._asked(
            ("top", "-n", "1"), lambda client: next(iter(client.watch(1.0)))
        )
        return answer

    def grants(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self._asked(("ps",), lambda client: client.list_grants())
        return answer

    def _asked(self, words: tuple[str, ...], ask: Callable[[Client], Any]) -> Any:
        """Answer that the command would print as JSON, without a process of its own (a fifth of a
        second of CPU), since tests poll it. A node whose commands run elsewhere runs the command
        itself."""
        if type(self).cli is not Node.cli:
            return self.cli_json(*words)
        try:
            with contextlib.closing(Client(self.socket, _wire())) as client:
                return json.loads(json.dumps(write_all_fields(ask(client))))
        except (Unreachable, Refused) as error:
            raise subprocess.CalledProcessError(69, words, stderr=str(error)) from None

    def grant(self, name: str) -> dict[str, Any] | None:
        return next((grant for grant in self.grants() if grant["name"] == name), None)

    def metrics(self) -> str:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60
        ) as answer:
            text: str = answer.read().decode()
        return text

    def run(
        self,
        name: str,
        *command: str | Path,
        flags: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
        measured: bool = False,
    ) -> Tenant:
        """Start a command in a grant: `flags` are those of `sluice run`; `measured` for its GPU time."""
        tenant = Tenant(
            name,
            subprocess.Popen(
                [SLUICE, "run", "--name", name, *flags, "--", *command],
                env=self.environment(**(env or {})),
                stdout=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
            ),
        )
        self.tenants.append(tenant)
        if measured:
            ahead(tenant.process.pid)
        return tenant

    def run_tenant(
        self, name: str, *arguments: str, flags: tuple[str, ...], measured: bool = False
    ) -> Tenant:
        return self.run(name, TENANT, *arguments, flags=flags, measured=measured)

    def run_bare(self, name: str, *arguments: str) -> Tenant:
        """The same program straight on the driver: what a machine without us gives."""
        return self.bare(TENANT, *arguments, name=name)

    def bare(self, program: Path, *arguments: str, name: str = "") -> Tenant:
        """Any program, straight on the driver."""
        tenant = Tenant(
            name or program.name,
            subprocess.Popen(
                [program, *arguments],
                env=self.on_the_driver(),
                stdout=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
            ),
        )
        self.tenants.append(tenant)
        return tenant

    @property
    def begin(self) -> Path:
        """File that starts tenants which must measure the same time (`--begin`), in containers
        too."""
        return self.directory / "gpu" / "begin"

    def begin_when(self, jobs: int) -> None:
        """Begin as soon as that many processes are registered."""
        until("all are ready", lambda: sum(grant["processes"] for grant in self.grants()) >= jobs)
        self.begin.touch()

    def stop(self) -> None:
        for tenant in self.tenants:
            if tenant.process.poll() is None:
                tenant.kill()
        self.stop_daemon()
        clear(self.directory)

    def stop_daemon(self) -> None:
        """In order."""
        if self.daemon is not None and self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()


@contextlib.contextmanager
def running(directory: Path, **options: Any) -> Iterator[Node]:
    node = Node(directory, **options)
    try:
        node.start()
        yield node
    finally:
        node.stop()


def soon_ns(seconds: float) -> str:
    """A CLOCK_MONOTONIC time `seconds` from now, for tenants that must measure the same window."""
    return str(time.monotonic_ns() + int(seconds * 1e9))


__all__ = [
    "BUILD",
    "SHIM",
    "Node",
    "NodeError",
    "Tenant",
    "running",
    "soon_ns",
    "until",
]
