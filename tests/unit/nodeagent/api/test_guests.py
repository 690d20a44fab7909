"""Connections at the daemon's socket: admission, eviction, and the limit of requests per client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nodeagent.adapters.api.accounts import Accounts
from nodeagent.adapters.api.guests import (
    CALLS_BURST,
    CALLS_PER_S,
    IDLE_S,
    MAX_CONNECTIONS,
    MAX_PER_ACCOUNT,
    ROOM_FOR_ROOT,
    SILENT_S,
    Guest,
    GuestBook,
)
from nodeagent.adapters.processes.identity import read_process
from nodeagent.ports.clients import Refused
from nodeagent.ports.processes import Process


class Party:
    def __init__(self) -> None:
        self.book = GuestBook()
        self.dropped: list[int] = []

    def enter(self, account: int, now_s: float = 0.0) -> Guest | None:
        box: list[Guest] = []
        guest = self.book.enter(account, lambda: self.dropped.append(box[0].account), now_s)
        if guest is not None:
            box.append(guest)
        return guest


def test_users_cannot_lock_root_out() -> None:
    party = Party()
    for account in (65534, 65533, 65532):
        for _ in range(300):
            party.enter(account)
    others = len(party.book)
    assert others == MAX_CONNECTIONS - ROOM_FOR_ROOT
    for _ in range(ROOM_FOR_ROOT):
        assert party.enter(0) is not None
    assert party.enter(0) is not None, "root's oldest idle one makes room"


def test_a_third_user_gets_room_from_who_has_the_most_and_says_nothing() -> None:
    party = Party()
    for account in (1, 2):
        for _ in range(MAX_PER_ACCOUNT):
            party.enter(account)
    party.dropped.clear()
    assert party.enter(3) is not None
    assert len(party.dropped) == 1
    assert party.dropped[0] in (1, 2)


def test_connections_that_are_being_answered_are_nobodys_room() -> None:
    party = Party()
    for account in (1, 2):
        for _ in range(MAX_PER_ACCOUNT):
            guest = party.enter(account)
            if guest is not None:
                guest.calls = 1
    before = len(party.book)
    assert party.enter(3) is None
    assert party.enter(1) is None
    assert party.enter(0) is not None
    assert len(party.book) == before + 1


def test_silence_ends_a_connection_and_a_call_keeps_it() -> None:
    party = Party()
    party.enter(1)
    busy, was_busy = party.enter(2), party.enter(3)
    assert busy is not None
    assert was_busy is not None
    party.book.begin(busy, "Watch", 1.0)
    party.book.begin(was_busy, "ListGrants", 1.0)
    party.book.end(was_busy, "ListGrants", 2.0)
    party.book.sweep(SILENT_S - 1)
    assert party.dropped == []
    party.book.sweep(SILENT_S + 1)
    assert party.dropped == [1]
    party.book.sweep(2.0 + IDLE_S + 1)
    assert party.dropped == [1, 3]
    party.book.sweep(1e6)
    assert party.dropped == [1, 3]


def test_streams_are_bounded_for_a_user_over_all_his_connections_and_not_for_root() -> None:
    party = Party()
    begun, reasons = 0, []
    for account in (*[7] * 50, *range(100, 120)):
        guest = party.enter(account)
        assert guest is not None
        for _ in range(20):
            try:
                party.book.begin(guest, "Watch", 0.0)
                begun += 1
            except Refused as refused:
                reasons.append(refused.reason)
        if account == 7:
            assert begun == 16
    assert begun == 128
    assert reasons[0] == "uid 7: too many concurrent Watch calls (limit 16)"
    assert reasons[-1] == "too many concurrent Watch calls on this node (limit 128)"
    root = party.enter(0)
    assert root is not None
    for _ in range(500):
        party.book.begin(root, "Watch", 0.0)


def test_who_asks_too_often_waits_and_is_refused_when_it_goes_on() -> None:
    party = Party()
    delays = []

    def ask() -> None:
        guest = party.enter(7)  # a new connection each time does not help
        assert guest is not None
        try:
            delays.append(party.book.begin(guest, "ListGrants", 0.0))
            party.book.end(guest, "ListGrants", 0.0)
        finally:
            party.book.leave(guest)

    for _ in range(int(CALLS_BURST + 5 * CALLS_PER_S)):
        ask()
    with pytest.raises(Refused, match="uid 7: rate limit of 100 calls per second exceeded"):
        [ask() for _ in range(2)]
    assert delays[: int(CALLS_BURST)] == [0.0] * int(CALLS_BURST)
    assert 0.0 < delays[int(CALLS_BURST)] <= delays[-1] <= 5.0
    guest = party.enter(8)
    assert guest is not None
    assert party.book.begin(guest, "ListGrants", 0.0) == 0.0, "another user is not asked to wait"


def process(uid: int, pid: int | None = None) -> Process:
    here = read_process(pid or os.getpid())
    return Process(here.pid, here.starttime_ticks, uid, uid, here.ns_pid)


def test_a_uid_of_a_users_range_is_the_users(tmp_path: Path) -> None:
    subuid = tmp_path / "subuid"
    subuid.write_text("1000:100000:65536\n# nonsense\nnobody-here:1:x\n2000:300000:10\n")
    accounts = Accounts(subuid)
    assert accounts.of(process(100000)) == accounts.of(process(165535)) == 1000
    assert accounts.of(process(300009)) == 2000
    assert accounts.of(process(300010)) == 300010
    assert accounts.of(process(1000)) == 1000
    assert accounts.of(process(0)) == 0
    subuid.write_text("4000:100000:65536\n")
    os.utime(subuid, ns=(1, 1))
    assert accounts.of(process(100000)) == 4000
    assert Accounts(tmp_path / "none").of(process(100000)) == 100000


CHILD = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
os.setresgid(12345, 12345, 12345)
os.setresuid(12345, 12345, 12345)
libc.prctl(4, 1, 0, 0, 0)  # dumpable again: else its maps are root's
for number in (12345, 0):
    if libc.unshare(0x10000000):
        print(os.strerror(ctypes.get_errno()), flush=True)
        sys.exit(0)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {number} 1"), ("gid_map", f"0 {number} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
print("yes", flush=True)
sys.stdin.read()
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="takes another uid")
def test_a_namespace_in_a_namespace_is_its_makers(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "yes\n":
            pytest.skip("this kernel lets users make no user namespaces")
        accounts = Accounts(tmp_path / "none")
        assert accounts.of(process(77777, child.pid)) == 12345
    finally:
        child.kill()
        child.wait(60)
