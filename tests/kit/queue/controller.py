"""The real queue controller on this machine, for the demo, the fault tests and other tests that need one in front of a node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kit.node import until
from tests.kit.places import REPO, SLUICE
from tests.kit.workplace import free_port

SLUICE_QUEUE = SLUICE.with_name("sluice-queue")


@dataclass
class QueueController:
    """`settings` are `SECTION.KEY=VALUE`; `program` replaces `sluice-queue serve`. Callers come over a Unix socket; with
    `tcp` over TLS, for which the settings must have the files."""

    directory: Path
    settings: Sequence[str] = ()
    program: Sequence[str | Path] = (SLUICE_QUEUE, "serve")
    host: str = "127.0.0.1"
    tcp: bool = False
    both: bool = False
    """TCP too, for others than our own `cli`."""
    port: int = 0
    metrics_port: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    client_flags: Sequence[str] = ()
    prefix: Sequence[str] = ()
    """Put before every command: `nsenter …`."""
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        self.metrics_port = self.metrics_port or free_port()

    @property
    def address(self) -> str:
        return self.tcp_address if self.tcp else f"unix:{self.socket}"

    @property
    def tcp_address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def socket(self) -> Path:
        return self.directory / "queue.sock"

    @property
    def database(self) -> Path:
        return self.directory / "queue.sqlite"

    @property
    def log(self) -> str:
        path = self.directory / "queue.log"
        return path.read_text() if path.exists() else ""

    def launch(self, **environment: str) -> None:
        """Starts it without waiting until it answers."""
        settings = [part for one in self.settings for part in ("--set", one)]
        log = (self.directory / "queue.log").open("ab")
        self.process = subprocess.Popen(
            [
                *self.prefix,
                *self.program,
                "--socket",
                self.socket,
                *(("--listen", self.tcp_address) if self.tcp or self.both else ()),
                "--metrics-listen",
                f"{self.host}:{self.metrics_port}",
                "--database",
                self.database,
                *settings,
            ],
            env=dict(os.environ) | {"PYTHONPATH": str(REPO)} | self.environment | environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )

    def start(self, **environment: str) -> None:
        self.launch(**environment)
        until("the queue controller answers", self.is_ready)

    def is_ready(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"the queue controller ended: {self.log[-2000:]}")
        if not self.prefix:
            # A command costs a fifth of a second of CPU: not before a server listens.
            try:
                self.http("/healthz")
            except OSError:
                return False
        return self.cli("get", "nodes", check=False).returncode == 0

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()

    def cli(
        self, *arguments: str | Path, check: bool = True, text: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self.prefix, SLUICE_QUEUE, *arguments, "--server", self.address, *self.client_flags],
            text=True,
            input=text,
            capture_output=True,
            timeout=120,
        )
        if check and done.returncode:
            raise RuntimeError(f"{arguments}: {done.stdout}{done.stderr}\n{self.log[-2000:]}")
        return done

    def apply(self, manifests: str) -> None:
        self.cli("apply", "-f", "-", text=manifests)

    def get(self, kind: str, *more: str) -> Any:
        return json.loads(self.cli("get", kind, *more, "-o", "json").stdout)

    def workloads(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("workloads")["items"]
        return found

    def phase(self, name: str) -> str:
        """Phase of the workload `NAMESPACE/NAME`; "" when there is none."""
        done = self.cli("get", "workload", name, "-o", "json", check=False)
        return json.loads(done.stdout)["status"]["phase"] if done.returncode == 0 else ""

    def http(self, path: str) -> tuple[int, str]:
        url = f"http://{self.host}:{self.metrics_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """Sum over all labels."""
        lines = self.http("/metrics")[1].splitlines()
        found = [x for x in lines if x.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in found)


@contextlib.contextmanager
def serving(directory: Path, **options: Any) -> Iterator[QueueController]:
    controller = QueueController(directory, **options)
    try:
        controller.start()
        yield controller
    finally:
        controller.stop()
