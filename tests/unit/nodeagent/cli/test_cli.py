"""The command line at 3 a.m.: whatever is typed, one clear line, a status, never a traceback."""

from __future__ import annotations

import os
import shlex
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.cli.main import main, make_parser
from nodeagent.core.watch.detection import Rule
from nodeagent.ports.views import EventKind
from tests.kit.places import SLUICE

BAD = {
    "--gpus": ["", "0", "-1", "17", "1.5", "x", "٣", "9" * 5000],
    "--gpumem": ["", "0", "-1", "8Qi", "8 Gi", "nan", "101%", "٣Gi", "9" * 400],
    "--cores": ["", "0", "-1", "101", "nan", "٥"],
    "--priority": ["", "x", "1.5", "1001", "-1001", "9" * 5000],
    "--wait": ["", "x", "-1", "nan", "inf", "1e18"],
    "--max-time": ["-1", "1e300"],
    "--policy": ["", "HARD"],
    "--inject": ["", "x"],
    "--socket": [""],
}


@pytest.mark.parametrize(
    ("flag", "text"), [(flag, text) for flag, texts in BAD.items() for text in texts]
)
def test_a_wrong_value_is_told_with_its_flag(
    flag: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["run", f"{flag}={text}", "--", "true"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"sluice run: error: argument {flag}: ")
    assert "invalid" not in last, "our own words say what is right, argparse's do not"


@pytest.mark.parametrize("kind", [*EventKind, *Rule])
def test_events_are_filtered_by_every_kind_that_the_daemon_records(kind: str) -> None:
    assert make_parser().parse_args(["events", "--kind", kind]).kind == kind


@pytest.mark.parametrize(
    "words",
    [
        ["top", "-n", "-1"],
        ["top", "-n", "1.5"],
        ["top", "--interval", "1e300"],
        ["trace", "0"],
        ["trace", "4194305"],
        ["events", "--kind", "unregistered"],
        ["config", "check", "--config", ""],
        ["config", "check", "--hami", ""],
    ],
)
def test_the_other_commands_are_as_strict(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2


def run(*words: str | bytes, stdout: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    """Standard output into the file named, if any."""
    with open(stdout or os.devnull, "w") as out:
        done = subprocess.run(
            [SLUICE, *words],
            stdout=out if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | more,
            timeout=60,
        )
    assert "Traceback" not in done.stderr
    return done


def test_without_a_daemon_every_command_says_where_it_looked(tmp_path: Path) -> None:
    left = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(left))
    for path, said in (
        (tmp_path / "none.sock", f"no daemon at {tmp_path}/none.sock; "),
        (tmp_path, f"no daemon at {tmp_path}; "),
        (left, f"no daemon answers at {left}; "),
    ):
        done = run("ps", "--socket", str(path))
        assert done.returncode == 69
        assert done.stderr.startswith(f"sluice: ps: {said}")
        assert done.stderr.count("\n") == 1


def test_a_closed_socket_is_not_a_missing_daemon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda *_args, **_more: False)  # root may go everywhere
    path = str(tmp_path / "sluice.sock")
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(path)
        assert main(["ps", "--socket", path]) == 69
    assert f"sluice: ps: {path}: permission denied; run this as" in capsys.readouterr().err


def test_a_newline_in_a_name_stays_on_the_line() -> None:
    done = run("ps", "--socket", "/none\n\x1b[31m")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("words", [["version"], ["config", "check"], ["doctor"]])
def test_an_answer_that_cannot_be_written_is_a_failure(words: list[str]) -> None:
    done = run(*words, stdout="/dev/full")
    assert done.returncode == 74
    assert done.stderr == f"sluice: {words[0]}: cannot write: No space left on device\n"


def test_a_locale_without_our_letters_loses_letters_only() -> None:
    assert run("doctor", "--socket", "/none", PYTHONIOENCODING="ascii").returncode == 1


# --- the daemon -------------------------------------------------------------------------------


def serve(tmp_path: Path, runtime: Path, state: Path) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "sluice.toml"
    config.write_text(
        f'[daemon]\nruntime_dir = "{runtime}"\nstate_dir = "{state}"\n'
        '[metrics]\nenabled = false\n[ebpf]\nenabled = "off"\n'
    )
    return run("serve", "--config", str(config))


def test_a_directory_that_cannot_be_made_is_named_with_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for setting, runtime, state in (
        ("daemon.runtime_dir", file / "run", tmp_path / "state"),
        ("daemon.state_dir", tmp_path / "run", file),
    ):
        done = serve(tmp_path, runtime, state)
        assert done.returncode == 69
        assert done.stderr.startswith(f"sluice serve: {setting}: {file}")
        assert done.stderr.count("\n") == 1


def test_one_state_directory_has_one_daemon(tmp_path: Path) -> None:
    from nodeagent.adapters.ledger.instance_lock import InstanceLock

    state = tmp_path / "state"
    state.mkdir()
    held = InstanceLock(state, "daemon.state_dir")
    done = serve(tmp_path, tmp_path / "run", state)
    held.close()
    assert done.returncode == 69
    assert f"(pid {os.getpid()}, " in done.stderr
    assert "give this one a daemon.state_dir of its own" in done.stderr
    assert not (state / "ledger.sqlite").exists(), "not even looked at"


def test_a_ledger_that_is_a_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "state" / "ledger.sqlite").mkdir(parents=True)
    done = serve(tmp_path, tmp_path / "run", tmp_path / "state")
    assert done.returncode == 75
    assert "ledger.sqlite: is a directory" in done.stderr
    assert "daemon.state_dir" in done.stderr
    assert (tmp_path / "state" / "ledger.sqlite").is_dir()


def test_a_ledger_of_a_later_version_is_kept(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    ledger = tmp_path / "state" / "ledger.sqlite"
    with sqlite3.connect(ledger) as db:
        db.execute("PRAGMA user_version = 999")
    before = ledger.read_bytes()
    done = serve(tmp_path, tmp_path / "run", tmp_path / "state")
    assert done.returncode == 69
    assert "has schema 999" in done.stderr.splitlines()[-1]
    assert ledger.read_bytes()[100:] == before[100:]


def test_a_current_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # Below a path with a space it begins in a shell.
    sluice = shlex.join([sys.executable, str(SLUICE)])
    script = f"rmdir {gone}; exec {sluice} config check --hami x"
    done = subprocess.run(["sh", "-c", script], cwd=gone, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "sluice: config: the current directory is gone: cd to another\n"
