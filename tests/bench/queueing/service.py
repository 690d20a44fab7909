"""The queue controller's service, from outside: a real server, real clients and nodes, on this machine's disk and cores.

What cannot be passed is measured beside it, in the same run: the same messages through a gRPC server that only answers,
and the same rows through SQLite alone, committed in groups. Clients and server share the machine, so with few cores the
clients' part is in the figures; the bare server's has it, too.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.bench.entries import Entry, entry
from tests.bench.queueing.stored import QUEUES, store
from tests.kit.places import REPO
from tests.kit.queue.controller import QueueController
from tests.queue.server.certificates import Authority

NODES = 100
CLIENTS = 50
GROUP = 20
"""Rows of one transaction: about what the server's have under this load."""
ROW_BYTES = 600
FOLLOWERS = 5000
TURNS = 3


def load(kind: str, target: str, *more: object) -> dict[str, Any]:
    words = [sys.executable, "-m", "tests.bench.queueing.queue_load", kind, target, *map(str, more)]
    out = subprocess.run(words, cwd=REPO, check=True, capture_output=True, text=True, timeout=600)
    found: dict[str, Any] = json.loads(out.stdout)
    return found


@contextmanager
def served(directory: Path, pki: Path, database: Path | None = None) -> Iterator[QueueController]:
    directory.mkdir()
    if database is not None:
        for file in database.parent.glob(f"{database.name}*"):
            shutil.copy(file, directory / file.name.replace(database.name, "queue.sqlite"))
    settings = [
        *(f"tls.certificate={pki}/queue.pem", f"tls.key={pki}/queue.key"),
        *(f"tls.client_ca={pki}/ca.pem", "workloads.max_per_user=1000000"),
    ]
    controller = QueueController(directory, host="localhost", both=True, settings=settings)
    try:
        yield controller
    finally:
        controller.stop()


def certificates(pki: Path) -> None:
    authority = Authority(pki)
    authority.issue("queue", "DNS:localhost")
    nodes = authority.issue("nodes", "DNS:nodes")
    authority.sign_many(nodes, {f"n{i}": f"URI:sluice:node:n{i}" for i in range(NODES)})


def bare_grpc(directory: Path, seconds: float) -> dict[str, Any]:
    target = f"unix:{directory / 'echo.sock'}"
    words = [sys.executable, "-m", "tests.bench.queueing.queue_load", "echo", target]
    with subprocess.Popen(words, cwd=REPO, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            return load("submit", target, "--clients", CLIENTS, "--seconds", seconds)
        finally:
            server.kill()


def bare_sqlite(directory: Path, seconds: float) -> float:
    """Rows per second."""
    with closing(sqlite3.connect(directory / "bare.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, revision INTEGER, body TEXT) STRICT")
        rows, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            db.execute("BEGIN IMMEDIATE")
            for _ in range(GROUP):
                rows += 1
                db.execute("INSERT INTO rows VALUES (?, ?, ?)", (str(rows), rows, "x" * ROW_BYTES))
            db.execute("COMMIT")
        return rows / (time.perf_counter() - began)


def restart(controller: QueueController) -> float:
    """Seconds from its launch until it says that it is ready."""
    began = time.perf_counter()
    controller.launch()
    while time.perf_counter() < began + 120:
        try:
            if controller.http("/readyz")[0] == 200:
                return time.perf_counter() - began
        except OSError:
            pass
        time.sleep(0.01)
    raise RuntimeError(f"the controller was not ready in 120 s: {controller.log[-1000:]}")


def of(controller: QueueController) -> tuple[object, ...]:
    assert controller.process is not None
    return ("--controller", controller.process.pid)


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the median rate."""
    return sorted(runs, key=lambda run: run["per_s"])[len(runs) // 2]


def rates(runs: list[dict[str, Any]]) -> list[float]:
    return [round(run["per_s"], 1) for run in runs]


def memory_kib(controller: QueueController) -> int:
    assert controller.process is not None
    status = Path(f"/proc/{controller.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def run(quick: bool) -> list[Entry]:
    seconds, stored = (2.0, 10_000) if quick else (6.0, 100_000)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as name:
        place = Path(name)
        pki = place / "pki"
        certificates(pki)
        (place / "made").mkdir()
        store(place / "made" / "large.sqlite", stored * 9 // 10, stored // 10)
        rows_per_s = bare_sqlite(place, seconds / 2)
        echo = bare_grpc(place, seconds / 2)
        with served(place / "empty", pki) as controller:
            restart(controller)
            controller.apply(QUEUES)
            empty_kib = memory_kib(controller)
            submits = load(
                "submit",
                controller.address,
                *of(controller),
                "--clients",
                CLIENTS,
                "--seconds",
                seconds,
            )
        with served(place / "large", pki, place / "made" / "large.sqlite") as controller:
            restart_s = restart(controller)
            each_kib = (memory_kib(controller) - empty_kib) / stored
            loaded = load(
                "submit",
                controller.address,
                *of(controller),
                "--clients",
                CLIENTS,
                "--seconds",
                seconds,
            )
        nodes = ("--pki", pki, "--nodes", NODES, "--clients", 20, "--seconds", seconds)

        def jobs_beside(what: str, per_s: float = 0, followers: int = 0) -> dict[str, Any]:
            with served(place / what, pki) as controller:
                restart(controller)
                controller.apply(QUEUES)
                more = ("--per-s", per_s, "--followers", followers, "--tls", controller.tcp_address)
                return load("jobs", controller.address, *of(controller), *more, *nodes)

        # In turns: what else the machine does must not be in one of the two only.
        plain, following = [], []
        for turn in range(1 if quick else TURNS):
            plain.append(jobs_beside(f"jobs-{turn}"))
            many = FOLLOWERS // (10 if quick else 1)
            following.append(jobs_beside(f"followed-{turn}", followers=many))
        jobs, followed = middle(plain), middle(following)
        half_ = jobs_beside("half", round(jobs["per_s"] / 2, 1))
    print(
        f"\nqueue service: bare gRPC {echo}\n  bare SQLite, groups of {GROUP}: {rows_per_s:.0f} rows/s"
    )
    print(f"  submits: {submits}\n  with {stored} stored: {loaded}")
    print(f"  jobs: {jobs}\n  at half of it: {half_}\n  with followers: {followed}")
    print(f"  in turns: {rates(plain)} jobs/s, with followers {rates(following)}")

    def beside(name: str, values: list[float], reference: float, target: str) -> Entry:
        value = sorted(values)[len(values) // 2]
        ratio = value / reference
        return entry(
            name, "1/s", values, value=value, baseline=reference, ratio=ratio, target=target
        )

    return [
        beside("queue_submits_per_s", [submits["per_s"]], echo["per_s"], ">= 1500"),
        entry("queue_submit_p99_ms", "ms", [submits["p99_ms"]], baseline=echo["p99_ms"], target="<= 60"),
        entry("queue_submit_cpu_ms", "ms", [submits["controller_cpu_ms"]], baseline=submits["load_cpu_ms"]),
        beside("queue_submits_100000_per_s", [loaded["per_s"]], echo["per_s"], ">= 1500"),
        entry("queue_submit_100000_p99_ms", "ms", [loaded["p99_ms"]], baseline=echo["p99_ms"], target="<= 60"),
        # A job is six rows and more: the workload four times, its assignment twice.
        beside("queue_jobs_per_s", rates(plain), rows_per_s / 6, ">= 500"),
        entry("queue_job_cpu_ms", "ms", [jobs["controller_cpu_ms"]], baseline=jobs["load_cpu_ms"]),
        entry("queue_start_p99_ms", "ms", [half_["p99_ms"]], target="<= 500"),
        beside("queue_jobs_5000_followers_per_s", rates(following), jobs["per_s"], ">= 90 % of it"),
        entry("queue_restart_100000_s", "s", [restart_s], target="<= 5"),
        entry("queue_stored_kib", "KiB", [each_kib], target="<= 2"),
    ]  # fmt: skip
