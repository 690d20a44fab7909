"""`make test-cluster`: builds what the cluster and the image are made of, says how long that took, then runs the scenarios.

What cannot be built fails the scenarios that need it, with the reason; only without any Go are they skipped. Arguments are
pytest's.

Two lanes: what needs a node runs here. Beside it, at a lower priority and in a pytest of its own, runs what needs an API server
only, with workers. Its report is a section of ours. It begins as soon as Kubernetes is built, while the image is.

`--two-nodes` as the first argument runs what needs two nodes instead (`make test-nodes`).

`--go-only` as the one argument builds Kubernetes, containerd and Kueue, which takes longest, and runs nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import IO, Any

import pytest

from tests.cluster import prometheus
from tests.cluster.programs import build, images, pins, product
from tests.cluster.programs.build import Unbuildable
from tests.kit.places import REPO

HERE = REPO / "tests" / "cluster"
API_ONLY = HERE / "api_only"
TWO_NODES = HERE / "e2e" / "nodes"
NICE = 5
"""A third of a processor for each that the node's lane wants. At the lowest priority, and two processors that others want,
an API server takes longer than kubectl waits for it (32 s), and leases of seconds are lost again and again."""
PATIENCE = 4
WORKERS = 4
"""Each has one file, and so one control plane, at a time; most of it is waiting."""
GARBAGE = {"GOGC": "400"}
"""Programs in Go collect garbage a quarter as often: etcd and an API server start with 6.4 instead of 7.1 s of processor time, for
200 MiB more."""
Part = tuple[str, Callable[[], object]]
"""A name for the log, and what builds it."""
CONTAINERD: Part = ("containerd", build.containerd)
KUEUE: Part = ("Kueue", build.kueue)
"""For a few tests, which build it if it is not there."""
GO_ONLY = "--go-only"
ON_TWO_NODES = "--two-nodes"
SLOWEST = ("--durations=15", "--durations-min=5")


def main(arguments: list[str]) -> int:
    if arguments == [GO_ONLY]:
        make_all([*kubernetes(), CONTAINERD, KUEUE])
        return 0
    os.environ.update(GARBAGE)
    make_all(kubernetes())
    files = sorted(HERE.rglob("test_*.py"))
    beside = [str(one) for one in files if API_ONLY in one.parents]
    on_two = [str(one) for one in files if TWO_NODES in one.parents]
    here = [str(one) for one in files if not {API_ONLY, TWO_NODES} & set(one.parents)]
    if arguments[:1] == [ON_TWO_NODES]:
        make_all(others())
        return int(pytest.main([*on_two, "-m", "cluster", *SLOWEST, *arguments[1:]]))
    marked = ("-m", "cluster", *SLOWEST, *arguments)
    lanes = [Beside("what needs an API server only", [*beside, "-n", str(WORKERS), *marked])]
    try:
        make_all(others())
        status = pytest.main([*here, *marked], list(lanes))
    finally:
        ended = [one.end() for one in lanes]
    every = [status, *ended]
    bad = set(every) - {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    return int(max(bad) if bad else min(every))


def make_all(parts: list[Part]) -> None:
    for what, make in parts:
        begin_s = time.monotonic()
        try:
            make()
        except (Unbuildable, OSError) as error:
            print(f"test-cluster: {what}: {error}", file=sys.stderr, flush=True)
        else:
            print(f"test-cluster: {what}: {time.monotonic() - begin_s:.0f} s", flush=True)


class Beside:
    """A plugin of the first lane, since its last line is to be the last."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self._name = name
        self._said: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as we live
        self._process = subprocess.Popen(
            ["nice", "-n", str(NICE), sys.executable, "-m", "pytest", *arguments],
            stdout=self._said,
            stderr=subprocess.STDOUT,
            env={**os.environ, "SLUICE_TEST_PATIENCE": str(PATIENCE)},
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        self._process.wait()
        terminalreporter.section(self._name)
        self._said.seek(0)
        terminalreporter.write(self._said.read())

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Forward a SIGTERM to the other pytest before its report is waited for; a Ctrl-C has
        reached it already."""
        if excinfo.value.args:
            self._process.terminate()

    def end(self) -> int:
        """Its exit status."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait()


def kubernetes() -> list[Part]:
    minors = dict.fromkeys(
        [pins.wanted_minor(), os.environ.get("SLUICE_KUBERNETES_ALSO") or pins.wanted_minor()]
    )
    return [(f"Kubernetes {minor}", partial(build.kubernetes, minor)) for minor in minors]


def others() -> list[Part]:
    return [
        CONTAINERD,
        ("Debian's packages", build.debian),
        ("small images", lambda: images.made(build.programs())),
        ("Prometheus", prometheus.program),
        ("helm", product.helm),
        ("the image of this tree", product.images),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
