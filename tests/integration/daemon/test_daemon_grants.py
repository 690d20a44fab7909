"""Grants on a running daemon: `sluice run`, registration, reaping, resize, refusal."""

from __future__ import annotations

import ctypes
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.kit.daemon.harness import Daemon, daemon, until
from tests.kit.measure import within

QUOTA_BACK_S = 1.0


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    with daemon() as made:
        yield made


def test_a_command_runs_with_its_own_exit_status(node: Daemon) -> None:
    done = node.sluice("run", "--gpumem", "8Gi", "--cores", "30", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7, done.stderr


def test_a_command_that_dies_by_a_signal_shows_it(node: Daemon) -> None:
    done = node.sluice("run", "--cores", "30", "--gpumem", "1Gi", "--", "sh", "-c", "kill -TERM $$")
    assert done.returncode == -signal.SIGTERM


def test_a_command_that_is_not_there_is_127(node: Daemon) -> None:
    done = node.sluice("run", "--cores", "30", "--gpumem", "1Gi", "--", "/no/such/program")
    assert done.returncode == 127
    assert "not found" in done.stderr


def test_the_tenant_inherits_no_descriptor_of_ours(node: Daemon) -> None:
    done = node.sluice("run", "--cores", "5", "--gpumem", "1Gi", "--", "ls", "/proc/self/fd")
    assert [int(n) for n in done.stdout.split()] == [0, 1, 2, 3]  # 3 is ls reading the directory


def test_the_tenant_has_default_signal_dispositions(node: Daemon) -> None:
    done = node.sluice(
        *("run", "--cores", "5", "--gpumem", "1Gi", "--"),
        *("grep", "SigIgn", "/proc/self/status"),
    )
    assert int(done.stdout.split()[1], 16) & 1 << signal.SIGPIPE - 1 == 0


def test_the_grant_ends_with_the_command(node: Daemon) -> None:
    def ended() -> float:
        assert node.sluice("run", "--cores", "30", "--gpumem", "1Gi", "--", "true").returncode == 0
        ended_s = time.monotonic()
        until("no grant is left", lambda: not node.grants())
        assert list((node.runtime / "grants").iterdir()) == []
        return time.monotonic() - ended_s

    within(QUOTA_BACK_S, ended)


def test_registration_writes_the_directory_and_a_kill_frees_the_slot(node: Daemon) -> None:
    def killed() -> float:
        tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "kill-me")
        reply = tenant.do("register")
        assert reply["error"] == 0
        entry = tenant.do("entry", reply["slot"])
        assert entry["host_pid"] == tenant.pid
        assert entry["generation"] == reply["generation"]
        tenant.do("set", reply["slot"], "charged_bytes", 5 << 30)
        until("the daemon sees the charge", lambda: _used(node, "kill-me") == 5 << 30)
        killed_s = time.monotonic()
        tenant.kill()
        until("the grant is gone", lambda: not [g for g in node.grants() if g.name == "kill-me"])
        return time.monotonic() - killed_s

    within(QUOTA_BACK_S, killed)


def test_a_killed_child_gives_its_memory_back_while_the_grant_lives_on(node: Daemon) -> None:
    parent = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "family")
    directory = node.grants()[-1].directory
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.kit.daemon.tenant", directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin
    assert child.stdout
    child.stdin.write("register\nset 0 charged_bytes 1073741824\nset 0 launches 7\n")
    child.stdin.flush()
    for _ in range(4):
        child.stdout.readline()
    until("the charge is seen", lambda: _used(node, "family") == 1 << 30)
    child.kill()
    child.wait()
    until("the charge is gone", lambda: _used(node, "family") == 0)
    (grant,) = [g for g in node.grants() if g.name == "family"]
    assert grant.devices[0].launches_total == 7, "history outlives the process"
    assert grant.processes == 0
    assert parent.do("get", 0, "charged_bytes") == 0, "the slot was zeroed"
    parent.kill()


def test_a_resize_reaches_the_page_while_the_job_runs(node: Daemon) -> None:
    tenant = node.run("--gpumem", "8Gi", "--cores", "30", "--name", "grow")
    assert tenant.do("turn", 0)["share_ppm"] == 300_000
    assert node.sluice("resize", "grow", "--cores", "60", "--gpumem", "9Gi").returncode == 0
    line = tenant.do("turn", 0)
    assert line["share_ppm"] == 600_000
    assert line["memory_limit_bytes"] == 9 << 30
    assert node.sluice("resize", "grow", "--policy", "elastic").returncode == 0
    assert tenant.do("turn", 0)["share_ppm"] == 0
    assert node.sluice("pause", "grow").returncode == 0
    assert tenant.do("turn", 0)["flags"] & c.FLAG_PAUSED
    assert node.sluice("resume", "grow").returncode == 0
    assert not tenant.do("turn", 0)["flags"] & c.FLAG_PAUSED
    tenant.kill()


def test_a_share_that_does_not_fit_is_refused_with_what_is_free(node: Daemon) -> None:
    tenant = node.run("--gpumem", "60Gi", "--cores", "70", "--gpus", "2")
    done = node.sluice("run", "--gpumem", "30Gi", "--cores", "20", "--", "true")
    assert done.returncode == 125
    assert "20Gi of 80Gi free" in done.stderr
    done = node.sluice("run", "--gpumem", "10Gi", "--cores", "40", "--", "true")
    assert "30% of its time free" in done.stderr
    small = node.run("--gpumem", "1Gi", "--cores", "30", "--name", "small")
    done = node.sluice("resize", "small", "--cores", "50")
    assert done.returncode == 1
    assert "1Gi and 50% (hard) do not fit on GPU " in done.stderr
    assert "beside the other grants: 30% of its time free" in done.stderr
    small.kill()
    tenant.kill()


def test_waiting_ends_when_a_share_becomes_free(node: Daemon) -> None:
    first = node.run("--cores", "100", "--gpus", "2")
    waiting = subprocess.Popen(
        [
            *(sys.executable, "-m", "nodeagent.cli", "run", "--cores", "50", "--wait", "120"),
            *("--", "echo", "started"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=node.environment(),
    )
    assert waiting.stderr
    assert "waiting, number 1 in line" in waiting.stderr.readline()
    first.kill()
    out, _ = waiting.communicate(timeout=120)
    assert out == "started\n"
    assert waiting.returncode == 0


def test_a_wait_that_times_out_says_so(node: Daemon) -> None:
    first = node.run("--cores", "100", "--gpus", "2")
    done = node.sluice("run", "--cores", "50", "--wait", "0.1", "--quiet", "--", "true")
    assert done.returncode == 125
    assert "timed out" in done.stderr
    first.kill()


def test_the_257th_process_is_told_that_there_is_no_space(node: Daemon) -> None:
    tenant = node.run("--gpumem", "1Gi", "--cores", "5")
    slots = []
    for _ in range(256):
        reply = tenant.do("register")
        assert reply["error"] == 0
        slots.append(reply["slot"])
    assert sorted(slots) == list(range(256))
    assert tenant.do("register")["error"] == 28
    tenant.kill()


def test_a_process_that_did_not_read_the_reply_holds_no_slot(node: Daemon) -> None:
    """It waited too long and has taken a slot by itself: two slots for each would fill the grant."""
    tenant = node.run("--gpumem", "1Gi", "--cores", "5", "--name", "hasty")
    (grant,) = [g for g in node.grants() if g.name == "hasty"]
    request = c.RegisterRequest(
        magic=c.REGISTER_MAGIC,
        version=c.REGISTER_VERSION,
        region_major=c.REGION_MAJOR,
        ns_pid=os.getpid(),
    )

    def used() -> int:
        return next(g.processes for g in node.grants() if g.name == "hasty")

    with (
        open(f"{grant.directory}/{c.USAGE_FILE}", "r+b") as usage,
        mmap.mmap(usage.fileno(), 0),  # as every process of the grant
    ):
        for waits in (False, True):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(f"{grant.directory}/{c.SOCKET_FILE}")
                connection.send(bytes(request))
                if waits:
                    select.select([connection], [], [], 30)
        assert tenant.do("register")["error"] == 0
        until("only the tenant has a slot", lambda: used() == 1)
    tenant.kill()


def test_garbage_on_the_registration_socket_is_answered_with_eproto(node: Daemon) -> None:
    tenant = node.run("--gpumem", "1Gi", "--cores", "5", "--name", "garble")
    (grant,) = [g for g in node.grants() if g.name == "garble"]
    for message in (b"x", b"\0" * 24, b"\xff" * 24, b"\xff" * 4096):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(5)
            connection.connect(f"{grant.directory}/{c.SOCKET_FILE}")
            connection.send(message)
            reply = c.RegisterReply.from_buffer_copy(connection.recv(64))
            assert (reply.error, reply.magic) == (71, c.REGISTER_MAGIC)
    assert tenant.do("register")["error"] == 0
    tenant.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_can_neither_register_nor_see_nor_change_the_grant(node: Daemon) -> None:
    tenant = node.run("--gpumem", "1Gi", "--cores", "5", "--name", "mine")
    (grant,) = [g for g in node.grants() if g.name == "mine"]
    os.chmod(node.directory, 0o755)
    done = node.sluice("ps", as_nobody=True)
    assert "no grants" in done.stdout, done.stderr
    done = node.sluice("resize", "mine", "--cores", "90", as_nobody=True)
    assert done.returncode == 1
    assert "no grant 'mine'" in done.stderr
    done = node.sluice("connect", f"{grant.directory}/{c.SOCKET_FILE}", as_nobody=True)
    assert "PermissionError" in done.stderr
    command = ("run", "--gpumem", "1Gi", "--cores", "5", "--", "sh", "-c")
    files = f"{c.USAGE_FILE} {c.POLICY_FILE}"
    done = node.sluice(*command, f"id -u; cd $SLUICE_GRANT_DIR; ls -ln {files}", as_nobody=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "65534", done.stderr
    (usage,) = [line.split() for line in lines if line.endswith(c.USAGE_FILE)]
    (policy,) = [line.split() for line in lines if line.endswith(c.POLICY_FILE)]
    assert (usage[0], usage[2]) == ("-rw-------", "65534")
    assert (policy[0], policy[2]) == ("-r--r--r--", "0")
    # Names, process ids and command lines of others are not for reading, nor are the grants' names.
    record = Path(grant.directory) / "grant.json"
    assert record.stat().st_mode & 0o777 == 0o600
    for directory in (record.parent, record.parent.parent):
        assert directory.stat().st_mode & 0o777 == 0o711
    seen = node.sluice(
        *command, f"cat {record}; ls {record.parent}; ls {record.parent.parent}", as_nobody=True
    )
    assert (seen.stdout, seen.stderr.count("Permission denied")) == ("", 3)
    tenant.kill()


def test_the_layout_of_a_reply_is_the_contract() -> None:
    assert ctypes.sizeof(c.RegisterReply) == 24


def _used(node: Daemon, name: str) -> int:
    for grant in node.grants():
        if grant.name == name:
            return int(grant.devices[0].memory_used_bytes)
    return -1
