"""A CI run from end to end, over a project of a few tests with a Makefile of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.node import until
from tests.kit.places import REPO

ONCE = """
    from pathlib import Path
    import pytest

    def first_time(name):
        seen = Path(name)
        try:
            return not seen.exists()
        finally:
            seen.touch()

    def test_good(): pass

    def test_skipped(): pytest.skip("not here")

    @pytest.mark.parametrize("word", ["a b", "x::y"])
    def test_once(word):
        assert not first_time(f"called-{word}"), f"the first time of {word}"
"""
SETUP = """
    @pytest.fixture
    def late(): assert not first_time("set-up"), "not yet"

    def test_late(late): pass
"""
ALWAYS = """
    def test_always(): assert 1 == 2
"""


WORKERS = "-p xdist -n 2"


@pytest.fixture(params=["", WORKERS], ids=["without workers", "with workers"])
def workers(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def project(tmp_path: Path, tests: str, workers: str, command: str = "", beside: str = "") -> None:
    tmp_path.joinpath("pytest.ini").write_text("[pytest]\n")  # not one of a directory above
    tmp_path.joinpath("test_tiny.py").write_text(textwrap.dedent(tests))
    pytest_command = command or f"'{sys.executable}' -m pytest -p no:cacheprovider {workers}"
    makefile = f"test:\n\t@{beside}{pytest_command}\nother:\n\t@true\n"
    tmp_path.joinpath("Makefile").write_text(makefile)


def environment() -> dict[str, str]:
    """Environment of a person's shell, not of the `make` that may have started us; pytest without
    plugins begins in half the time."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTEST_"))}
    return kept | {"PYTHONPATH": str(REPO), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ci(place: Path, *suites: str) -> tuple[int, list[str], dict[str, Any]]:
    """Exit status, output, and the run's part of build/flaky.json."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ci", *(suites or ("test",))],
        cwd=place,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    print(done.stdout)
    written = json.loads((place / "build" / "flaky.json").read_text())
    return done.returncode, done.stdout.splitlines(), written["runs"][-1]


def last(lines: list[str]) -> str:
    return re.sub(r" in [\d.]+s ", "", lines[-1].strip("="))


def test_failures_that_pass_alone_leave_the_run_green(tmp_path: Path, workers: str) -> None:
    project(tmp_path, textwrap.dedent(ONCE) + textwrap.dedent(SETUP), workers)
    status, lines, run = ci(tmp_path, "test", "other")
    assert (status, last(lines)) == (0, " 4 passed, 1 skipped")
    assert {one["test"]: one["message"].partition("\n")[0] for one in run["flaky"]} == {
        "test_tiny.py::test_once[a b]": "AssertionError: the first time of a b",
        "test_tiny.py::test_once[x::y]": "AssertionError: the first time of x::y",
        "test_tiny.py::test_late": "AssertionError: not yet",
    }
    assert any(re.match(r"ci: test: \d+ s wall, \d+ s CPU$", line) for line in lines)
    for name in ("called-a b", "called-x::y", "set-up"):
        (tmp_path / name).unlink()
    status, lines, _ = ci(tmp_path)
    assert status == 0
    assert sum(line.startswith("DEFECT ") for line in lines) == 3


def test_a_failure_that_stays_is_red_beside_one_that_goes(tmp_path: Path, workers: str) -> None:
    project(tmp_path, textwrap.dedent(ONCE) + textwrap.dedent(ALWAYS), workers)
    status, lines, run = ci(tmp_path)
    assert (status, last(lines)) == (1, " 1 failed, 3 passed, 1 skipped")
    assert len(run["flaky"]) == 2
    assert "FAILED test: test_tiny.py::test_always (again): assert 1 == 2" in lines


def test_a_worker_that_crashes_is_red(tmp_path: Path) -> None:
    crash = """
    def test_crash():
        import os
        if first_time("crashed"): os._exit(1)
    """
    project(tmp_path, textwrap.dedent(ONCE) + textwrap.dedent(crash), WORKERS)
    status, lines, _ = ci(tmp_path)
    assert status == 1
    assert any(re.match(r"BROKEN test: .*test_crash: worker .*crashed", line) for line in lines)


def test_a_pytest_that_ends_in_the_middle_is_red(tmp_path: Path) -> None:
    project(tmp_path, "import os\ndef test_end(): os._exit(0)", "")
    status, lines, _ = ci(tmp_path)
    assert (status, last(lines)) == (1, " 1 error")
    assert any("did not come to its end" in line for line in lines)


def test_what_another_plugin_finds_wrong_is_red(tmp_path: Path) -> None:
    finds = """
    from tests.ci.recorder import BROKEN

    def pytest_sessionfinish(session):
        session.config.stash[BROKEN] = ["left behind: process 7"]
        session.exitstatus = 1
    """
    tmp_path.joinpath("conftest.py").write_text(textwrap.dedent(finds))
    project(tmp_path, "def test_good(): pass", "")
    status, lines, _ = ci(tmp_path)
    assert (status, last(lines)) == (1, " 1 passed, 1 error")
    assert "BROKEN test: left behind: process 7" in lines


def test_a_file_that_cannot_be_imported_is_red(tmp_path: Path, workers: str) -> None:
    project(tmp_path, "import no_such_module", workers)
    status, lines, _ = ci(tmp_path)
    assert status == 1
    assert any("BROKEN test: test_tiny.py: not collected" in line for line in lines)


def test_what_fails_beside_the_tests_is_red(tmp_path: Path) -> None:
    script = REPO / "packaging" / "development" / "beside.sh"
    project(tmp_path, ONCE, "", beside=f"'{script}' 'lint=echo too long; exit 1' -- ")
    status, lines, run = ci(tmp_path)
    assert (status, last(lines)) == (1, " 3 passed, 1 skipped, 1 error")
    assert "BROKEN test: lint failed" in lines
    assert len(run["flaky"]) == 2


def test_a_suite_that_cannot_be_built_is_red(tmp_path: Path) -> None:
    project(tmp_path, ONCE, "", command="exit 3")
    status, lines, _ = ci(tmp_path)
    assert (status, last(lines)) == (1, " 1 error")
    assert "BROKEN test: ended with 2 and named no reason" in lines


def prepared(place: Path, programs: str, page: str, cluster: str = "true") -> None:
    """A project with these commands for the programs of a cluster and for two suites."""
    project(place, "def test_good(): pass", "")
    with place.joinpath("Makefile").open("a") as makefile:
        for name, command in (
            ("cluster-programs", programs),
            ("test-page", page),
            ("test-cluster", cluster),
        ):
            makefile.write(f"{name}:\n\t@{command}\n")


AWAITED = "until [ -e built ]; do sleep 0.05; done"


def waiting(place: Path, page: str, faults: str) -> None:
    """A project with these commands for two suites that mostly wait."""
    project(place, "def test_good(): pass", "")
    with place.joinpath("Makefile").open("a") as makefile:
        makefile.write(f"test-page:\n\t@{page}\ntest-faults:\n\t@{faults}\n")


def test_suites_that_mostly_wait_run_beside_each_other(tmp_path: Path) -> None:
    met = "touch {0}; echo says {0}; until [ -e {1} ]; do sleep 0.05; done; echo ends {0}"
    waiting(tmp_path, met.format("page", "faults"), met.format("faults", "page"))
    status, lines, _ = ci(tmp_path, "test", "test-page", "test-faults")
    assert status == 0
    said = [line for line in lines if line.startswith(("says", "ends"))]
    assert said == ["says page", "ends page", "says faults", "ends faults"]


def test_one_of_two_suites_beside_each_other_is_red(tmp_path: Path) -> None:
    waiting(tmp_path, "exit 3", "true")
    status, lines, _ = ci(tmp_path, "test-page", "test-faults")
    assert status == 1
    assert "BROKEN test-page: ended with 2 and named no reason" in lines
    assert not [line for line in lines if line.startswith("BROKEN test-faults")]


def test_what_passed_is_not_run_again_by_the_faults(tmp_path: Path) -> None:
    """Only where the other suite is one of the same run: its records stay."""
    waiting(tmp_path, "true", "echo '[$(FAULTS_ARGS)]'")
    _, lines, _ = ci(tmp_path, "test", "test-faults")
    earlier = tmp_path / "build" / "failed" / "test"
    assert f"[--scale 0.25 --earlier {earlier}]" in lines
    _, lines, _ = ci(tmp_path, "test-faults")
    assert "[--scale 0.25]" in lines


def test_what_a_later_suite_needs_is_built_beside_a_suite_that_waits(tmp_path: Path) -> None:
    prepared(tmp_path, "nice >niceness; touch built", AWAITED, "test -e built")
    status, _, _ = ci(tmp_path, "test-page", "test-cluster")
    assert status == 0
    assert tmp_path.joinpath("niceness").read_text().strip() == "19"


def test_what_no_later_suite_needs_is_not_built(tmp_path: Path) -> None:
    prepared(tmp_path, "touch built", "true")
    ci(tmp_path, "test-cluster", "test-page")
    assert not (tmp_path / "built").exists()
    assert not (tmp_path / "build" / "prepared.log").exists()


def test_a_build_ahead_that_fails_changes_no_verdict(tmp_path: Path) -> None:
    prepared(tmp_path, "touch built; echo no Go; exit 1", AWAITED)
    assert ci(tmp_path, "test-page", "test-cluster")[0] == 0
    assert "no Go" in (tmp_path / "build" / "prepared.log").read_text()


def test_a_build_ahead_ends_with_the_run(tmp_path: Path) -> None:
    prepared(tmp_path, "echo $$$$ >pid; touch built; exec sleep 600", AWAITED)
    assert ci(tmp_path, "test-page", "test-cluster")[0] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def is_over(pid: Path) -> bool:
    """True if the process with this number has ended, whether or not it has been reaped."""
    try:
        return psutil.Process(int(pid.read_text())).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_what_is_to_end_ends_all_suites_beside_each_other(tmp_path: Path) -> None:
    sleeping = "echo $$$$ >{0}; exec sleep 60"
    waiting(tmp_path, sleeping.format("page"), sleeping.format("faults"))
    words = [sys.executable, "-m", "tests.ci", "test-page", "test-faults"]
    run = subprocess.Popen(words, cwd=tmp_path, env=environment())
    pids = [tmp_path / name for name in ("page", "faults")]
    until("both have begun", lambda: all(one.exists() and one.read_text().strip() for one in pids))
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 130
    for one in pids:
        until("it has ended", lambda one=one: is_over(one))  # type: ignore[misc]


@pytest.mark.parametrize(
    "shell", [[], ["env", "--ignore-signal=INT"]], ids=["", "in the background"]
)
def test_what_is_to_end_ends_its_suite(tmp_path: Path, shell: list[str]) -> None:
    project(tmp_path, "", "", command="echo $$$$ >pid; exec sleep 60")
    run = subprocess.Popen(
        [*shell, sys.executable, "-m", "tests.ci", "test"],
        cwd=tmp_path,
        env=environment(),
    )
    pid = tmp_path / "pid"
    until("the suite has begun", lambda: pid.exists() and pid.read_text().strip())
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 130
    until("it has ended", lambda: is_over(pid))
