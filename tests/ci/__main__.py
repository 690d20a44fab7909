"""`.ci/run [SUITE …]`: each suite by its own command, what failed in it once more, then the verdict of tests/ci/verdict.py.

A suite is `make SUITE`, but for fewer kills in test-faults; tests/ci/recorder.py, loaded into its pytest, writes what failed into
build/failed/SUITE. After the suite those tests run again in one pytest without workers or other suites beside it. The list of
flaky tests of this and of earlier runs is build/flaky.json. Python's standard library is all that this needs, since
`make` only makes the virtual environment.

What a suite builds the first time is built beside earlier suites that mostly wait, with the processor time that they leave.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.ci.verdict import Failure, Suite, decide, unexplained

SUITES = ("test", "test-oldest", "test-page", "test-faults", "test-cluster")
WAITING = ("test-page", "test-faults")
"""Suites that leave a third of two processors and more unused."""
PREPARED = {"test-cluster": "cluster-programs"}
"""Target that builds a part of what the suite needs. The suite itself builds what is missing then."""
ARGUMENTS = {"test-faults": ("FAULTS_ARGS=--scale 0.25",)}
"""Variables of make for a suite. 500 of the 2,000 kills take as long as the tests beside them; `make test-faults` has all."""
RECORDER = "tests.ci.recorder"
DIRECTORY = "SLUICE_CI_RECORD"
"""The same variable as in tests/ci/recorder.py, which needs pytest."""
MAX_AGAIN = 20
"""Failed tests of a suite that are run a second time. More than that are a defect, and would take hours."""


@dataclass
class Records:
    """Records of all pytest processes of one run of a suite, together."""

    outcomes: dict[str, str] = field(default_factory=dict)
    durations_s: dict[str, float] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    started_by: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    """Failed test to the Python and the environment that it ran in."""


def main(arguments: Sequence[str]) -> int:
    began = datetime.now(UTC).isoformat(timespec="seconds")
    build = Path("build").absolute()
    names = list(arguments or SUITES)
    suites: list[Suite] = []
    with terminated_as_interrupted(), Preparation(build) as preparation:
        try:
            for index, name in enumerate(names):
                if name in WAITING:
                    preparation.start([PREPARED[one] for one in names[index:] if one in PREPARED])
                suites.append(suite(name, build / "failed"))
        except KeyboardInterrupt:
            print("ci: interrupted", file=sys.stderr, flush=True)
            return 130
    history = build / "flaky.json"
    verdict = decide(suites, earlier(history), began)
    write(history, {"runs": verdict.runs})
    print("\n".join(verdict.lines), flush=True)
    return verdict.status


class Preparation:
    """Builds for later suites, at the lowest priority. Its log is build/prepared.log. A build that fails
    changes nothing: the suite builds it again and reports why. Its processor time is in no suite's."""

    def __init__(self, build: Path) -> None:
        self._log = build / "prepared.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Preparation:
        return self

    def start(self, targets: Sequence[str]) -> None:
        """Begin with these targets of make, once."""
        if self._process is not None or not targets:
            return
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["nice", "-n", "19", "make", *targets],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=leave_the_processor_to_others,
            )

    def __exit__(self, *_: object) -> None:
        """End what is still being built."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGINT)
            self._process.wait()


def leave_the_processor_to_others() -> None:
    """Only use processor time that no other process wants, where the kernel permits it."""
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def suite(name: str, below: Path) -> Suite:
    began_s, began_cpu_s = time.monotonic(), cpu_s()
    first = below / name
    status = run(["make", name, *ARGUMENTS.get(name, ())], first, os.environ)
    records = read(first)
    again = Records()
    if 0 < len(records.failures) <= MAX_AGAIN:
        again = second(name, records, below / f"{name}.again")
    elif records.failures:
        say(f"{name}: {len(records.failures)} tests failed: too many to run again")
    took_s, took_cpu_s = time.monotonic() - began_s, cpu_s() - began_cpu_s
    say(f"{name}: {took_s:.0f} s wall, {took_cpu_s:.0f} s CPU")
    return Suite(
        name=name,
        status=status,
        wall_s=took_s,
        cpu_s=took_cpu_s,
        outcomes=records.outcomes,
        durations_s=records.durations_s,
        failures=records.failures,
        broken=[*records.broken, *(f"second run: {line}" for line in again.broken)],
        again=again.outcomes,
    )


def second(name: str, records: Records, to: Path) -> Records:
    """Run the failed tests of a suite alone, in one pytest for each Python that the suite used."""
    say(f"{name}: {len(records.failures)} failed, run again alone:")
    groups: dict[str, list[str]] = {}
    for test in records.failures:
        say(f"  {test}")
        groups.setdefault(records.started_by[test][0], []).append(test)
    again = Records()
    for index, (python, tests) in enumerate(groups.items()):
        environment = {**os.environ, **records.started_by[tests[0]][1]}
        # The tests are named, so no marker leaves them out.
        command = [python, "-m", "pytest", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", ""]
        directory = to / str(index)
        status = run([*command, *tests], directory, environment)
        one = read(directory)
        one.broken += unexplained(status, one.failures, one.broken)
        again.outcomes |= one.outcomes
        again.broken += one.broken
    return again


def run(command: Sequence[str], record: Path, environment: Mapping[str, str]) -> int:
    """Its exit status. Its process group is ended with us."""
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    more = {DIRECTORY: str(record), "PYTEST_PLUGINS": RECORDER}
    process = subprocess.Popen(command, env={**environment, **more}, process_group=0)
    try:
        return process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise


def read(directory: Path) -> Records:
    """Read the records that pytest wrote (*.json), and the lines about any other failure
    (*.broken)."""
    found = Records()
    for path in sorted(directory.glob("*.broken")):
        found.broken += path.read_text(errors="replace").splitlines() or [path.stem]
    for path in sorted(directory.glob("*.json")):
        record = json.loads(path.read_text())
        found.outcomes |= record["outcomes"]
        found.durations_s |= record["durations_s"]
        found.broken += record["broken"]
        if not record["finished"]:
            found.broken.append(f"{path.stem} did not come to its end")
        for test, failure in record["failures"].items():
            found.failures[test] = Failure(**failure)
            found.started_by[test] = (record["python"], record["environment"])
    return found


def earlier(history: Path) -> list[Any]:
    try:
        return list(json.loads(history.read_text())["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return []  # the first run, or a file that a run was killed over


def write(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(content, indent=1) + "\n")
    beside.replace(path)


def cpu_s() -> float:
    """User and system time of every process that we started and that has ended, with its own children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def say(line: str) -> None:
    print(f"ci: {line}", flush=True)


@contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """A deadline of the machine that runs us ends the suite like Ctrl-C does, so that it tidies up."""

    def interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    # A shell starts its background jobs with SIGINT ignored; the suites inherit that, and would never end.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, ignored)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
