"""The machine is at its end: what that must not be taken for, and who stands back for whom."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.adapters.host.descriptor_room import DescriptorRoom, is_short
from nodeagent.adapters.processes.identity import read_process
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region import layout as c
from nodeagent.adapters.region import registration
from nodeagent.shell.node import Node
from nodeagent.shell.rate_limited_log import RateLimitedLog, RateLimitFilter


def raising(number: int) -> Any:
    def call(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_process_that_cannot_be_looked_at_is_not_gone(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    me = read_process(os.getpid())
    monkeypatch.setattr(os, "pidfd_open", raising(number))
    with pytest.raises(OSError) as raised:
        SystemProcesses().find(me.pid, me.starttime_ticks)
    assert is_short(raised.value)
    monkeypatch.setattr(os, "pidfd_open", raising(errno.ESRCH))
    assert SystemProcesses().find(me.pid, me.starttime_ticks) is None


def test_an_accept_without_descriptors_is_no_defect(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> list[BaseException]:
        node: Any = Node.__new__(Node)
        node._ended = asyncio.get_running_loop().create_future()
        node._seldom = RateLimitedLog(logging.getLogger("test"))
        fatal: list[BaseException] = []
        node.fatal = fatal.append
        loop = asyncio.get_running_loop()
        for error in (OSError(errno.EMFILE, "Too many open files"), ConnectionResetError()):
            node._unhandled(loop, {"message": "socket.accept()", "exception": error})
        assert fatal == []
        node._unhandled(loop, {"message": "x", "exception": OSError(errno.EIO, "I/O")})
        return fatal

    assert len(asyncio.run(run())) == 1
    assert "Too many open files" in caplog.text


@pytest.mark.parametrize("limit", [64, 256, 1024, 65536])
def test_users_stand_back_first_and_root_last(limit: int) -> None:
    room = DescriptorRoom(limit)
    users = sum(room.for_user(number) for number in range(limit))
    root = sum(room.for_root(number) for number in range(limit))
    assert limit // 4 < users < root < limit - 8
    assert not room.for_user(limit - min(4096, limit // 4))


FILL = """
import os, resource
from nodeagent.adapters.host.descriptor_room import DescriptorRoom
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
room = DescriptorRoom()
taken = 0
try:
    while room.for_grant():
        taken = os.open("/dev/null", os.O_RDONLY)
    print(taken, room.for_root(taken + 1), room.for_user(taken + 1))
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError as error:
    print(error.errno, room.for_grant())
"""


def test_no_grant_is_begun_on_the_last_descriptors_and_registrations_have_theirs() -> None:
    found = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    first, second = found.stdout.splitlines()
    taken, root, user = first.split()
    assert (root, user) == ("True", "False")
    assert 128 < int(taken) < 256 - 64
    assert second == f"{errno.EMFILE} False"


@pytest.mark.parametrize(
    ("number", "answered"), [(errno.EMFILE, errno.EAGAIN), (errno.ENOENT, errno.ESRCH)]
)
def test_a_tenant_is_told_to_come_again_when_only_we_are_at_an_end(
    monkeypatch: pytest.MonkeyPatch, number: int, answered: int
) -> None:
    monkeypatch.setattr(registration, "peer_of", raising(number))
    listener: Any = registration.SeqpacketListener.__new__(registration.SeqpacketListener)
    request = c.RegisterRequest(
        magic=c.REGISTER_MAGIC, version=c.REGISTER_VERSION, region_major=c.REGION_MAJOR
    )
    answer, handle = listener._decide(SimpleNamespace(), SimpleNamespace(), bytes(request))
    assert (answer.error, handle) == (answered, None)


def test_the_same_line_is_written_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    told = RateLimitedLog(logging.getLogger("often"), every_s=3600)
    for _ in range(1000):
        told.warning("uid %d", 7)
    assert [one.getMessage() for one in caplog.records] == ["uid 7"]


def test_a_foreign_logger_is_heard_so_often_and_what_was_left_out_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("nodeagent.shell.rate_limited_log.time.monotonic", lambda: clock.now)
    heard = RateLimitFilter(most=5, every_s=10)

    def say() -> str | None:
        record = logging.makeLogRecord({"msg": "a %s", "args": ("b",)})
        return record.getMessage() if heard.filter(record) else None

    first = [say() for _ in range(100)]
    assert first == ["a b"] * 5 + [None] * 95
    clock.now = 11.0
    assert say() == "a b (and 95 records more before)"
