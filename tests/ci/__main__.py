"""`.ci/run [SUITE …]`: each suite by its own command, what failed in it once more, then the verdict of tests/ci/verdict.py.

A suite is `make SUITE`, but for fewer kills in test-faults; tests/ci/recorder.py, loaded into its pytest, writes what failed into
build/failed/SUITE. After the suite those tests run again in one pytest without workers or other suites beside it. The list of
flaky tests of this and of earlier runs is build/flaky.json. Python's standard library is all that this needs, since
`make` only makes the virtual environment.

Suites that mostly wait run beside each other; each prints its output when it has ended. What a suite builds the first time is
built beside them, with the processor time that they leave.
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
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.ci.verdict import Failure, Suite, decide, unexplained

SUITES = ("test", "test-oldest", "test-page", "test-faults", "test-cluster")
WAITING = ("test-oldest", "test-page", "test-faults")
"""Suites that leave a third of two processors and more unused: those that follow each other run beside each other."""
PREPARED = {"test-cluster": "cluster-programs"}
"""Target that builds a part of what the suite needs. The suite itself builds what is missing then."""
PATIENCE = {"SLUICE_TEST_PATIENCE": "3"}
"""Environment of suites beside each other: each has a part of the processors."""
KILLS = 0.25
"""500 of the 2,000 kills take as long as the suites beside them; `make test-faults` has all."""
LOOK_S = 0.2
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
    began, began_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    build = Path("build").absolute()
    names = list(arguments or SUITES)
    suites: list[Suite] = []
    with terminated_as_interrupted(), Preparation(build) as preparation:
        try:
            for group in groups(names):
                if group[0] in WAITING:
                    later = names[names.index(group[-1]) :]
                    preparation.start([PREPARED[one] for one in later if one in PREPARED])
                suites += run_group(group, build / "failed", names)
        except KeyboardInterrupt:
            print("ci: interrupted", file=sys.stderr, flush=True)
            return 130
    history = build / "flaky.json"
    verdict = decide(suites, earlier(history), began, time.monotonic() - began_s)
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


def groups(names: Sequence[str]) -> list[list[str]]:
    """The suites in order; those of one group run beside each other."""
    found: list[list[str]] = []
    for name in names:
        if found and name in WAITING and found[-1][-1] in WAITING:
            found[-1].append(name)
        else:
            found.append([name])
    return found


def arguments_of(name: str, names: Sequence[str], below: Path) -> list[str]:
    """Variables of make for a suite of this run."""
    if name == "test-faults":
        earlier = f" --earlier {below / 'test'}" if "test" in names[: names.index(name)] else ""
        return [f"FAULTS_ARGS=--scale {KILLS:g}{earlier}"]
    return []


def run_group(group: Sequence[str], below: Path, names: Sequence[str]) -> list[Suite]:
    """Run suites beside each other, then what failed in them alone."""
    running = [
        First(name, below, arguments_of(name, names, below), len(group) > 1) for name in group
    ]
    try:
        while [one for one in running if not one.has_ended()]:
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        for one in running:
            one.interrupt()
        raise
    return [one.finish(below) for one in running]


class First:
    """The first run of a suite."""

    def __init__(self, name: str, below: Path, arguments: Sequence[str], beside: bool) -> None:
        """`beside`: other suites run at the same time, so the output is kept until this one has ended."""
        self._name = name
        self._record = below / name
        self._began_s = time.monotonic()
        self._log = below / f"{name}.log" if beside else None
        environment = {**(PATIENCE if beside else {}), **os.environ}
        self._process = start(["make", name, *arguments], self._record, environment, self._log)
        self._status = 0
        self._wall_s = self._cpu_s = 0.0

    def has_ended(self, flags: int = os.WNOHANG) -> bool:
        if self._process.returncode is not None:
            return True
        pid, status, used = os.wait4(self._process.pid, flags)
        if pid == 0:
            return False
        self._status = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._wall_s = time.monotonic() - self._began_s
        self._cpu_s = used.ru_utime + used.ru_stime
        return True

    def interrupt(self) -> None:
        """End it with its process group, if it has not ended."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGINT)
            self.has_ended(0)

    def finish(self, below: Path) -> Suite:
        """Run what failed once more."""
        name = self._name
        if self._log is not None:
            say(f"{name}:")
            print(self._log.read_text(errors="replace"), flush=True)
        began_s, began_cpu_s = time.monotonic(), cpu_s()
        records = read(self._record)
        again = Records()
        if 0 < len(records.failures) <= MAX_AGAIN:
            again = second(name, records, below / f"{name}.again")
        elif records.failures:
            say(f"{name}: {len(records.failures)} tests failed: too many to run again")
        took_s = self._wall_s + time.monotonic() - began_s
        took_cpu_s = self._cpu_s + cpu_s() - began_cpu_s
        say(f"{name}: {took_s:.0f} s wall, {took_cpu_s:.0f} s CPU")
        return Suite(
            name=name,
            status=self._status,
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
    process = start(command, record, environment)
    try:
        return process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        process.wait()
        raise


def start(
    command: Sequence[str], record: Path, environment: Mapping[str, str], log: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own, whose pytest writes to `record`; with `log` its output goes there."""
    shutil.rmtree(record, ignore_errors=True)
    record.mkdir(parents=True)
    more = {DIRECTORY: str(record), "PYTEST_PLUGINS": RECORDER}
    with log.open("wb") if log is not None else nullcontext() as output:
        errors = subprocess.STDOUT if output is not None else None
        return subprocess.Popen(
            command, env={**environment, **more}, process_group=0, stdout=output, stderr=errors
        )


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
