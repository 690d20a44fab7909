"""Getting a slot: a process that becomes other programs, and a daemon with too many at its door."""

from __future__ import annotations

import ctypes
import socket
import threading
from pathlib import Path

import pytest

from nodeagent.adapters.region import layout as c
from tests.interpose import regions
from tests.interpose.regions import GIB, MIB, Region

HELD = 300 * MIB
CODE = f"""
init()
error, _ = alloc({HELD})
left = int(os.environ["LEFT"])
if error or not left:
    answer(error=error, left=left, pid=os.getpid())
else:
    os.execve(sys.executable, [sys.executable, "-c", os.environ["CODE"]], os.environ | {{"LEFT": str(left - 1)}})
"""


@pytest.fixture
def region(tmp_path: Path) -> Region:
    return Region(tmp_path / "grant", limits=(GIB,))


def becomes(region: Region, times: int) -> dict[str, int]:
    return regions.tenant(region, CODE, CODE=regions.PRELUDE + CODE, LEFT=str(times))


def claims(region: Region) -> list[int]:
    return [i for i, slot in enumerate(region.usage.slot) if slot.self_claim]


def test_what_a_program_held_is_not_charged_to_the_next_one_without_a_daemon(
    region: Region,
) -> None:
    """Three and a half of them fit: the fourth was refused, and each took a slot for good."""
    got = becomes(region, 9)
    assert (got["error"], got["left"]) == (0, 0)
    assert claims(region) == [0]
    assert region.usage.slot[0].self_claim >> 32 == got["pid"]
    assert region.usage.slot[0].dev[0].allocs >= 10, "what the grant did is counted on"
    assert HELD <= region.charged() < HELD + 200 * MIB


def test_a_slot_of_the_process_before_is_charged_nothing_though_the_daemon_never_noticed(
    region: Region,
) -> None:
    """The state is that after the daemon's death: slot 0 is owned, and no process detects the
    hang-up of its program."""
    becomes(region, 0)
    (first,) = claims(region)
    generation = ctypes.c_uint64()
    entry = c.PolicyEntry(host_pid=1, ns_pid=1)
    region.usage.slot[first].self_claim = 0
    own = region.lib.sluice_policy_own_slot
    assert (
        own(ctypes.byref(region.policy), first, ctypes.byref(entry), ctypes.byref(generation)) == 0
    )
    held = region.charged()
    assert held >= HELD
    becomes(region, 0)
    assert region.charged() >= 2 * HELD, "another process's is left alone"


class Door(threading.Thread):
    """The daemon's end: hangs up on the first callers unheard, then gives slot 7."""

    def __init__(self, region: Region, hang_up: int) -> None:
        super().__init__()
        self.region, self.hang_up, self.asked = region, hang_up, 0
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(region.path / c.SOCKET_FILE))
        self.listener.listen(8)
        self.generation = ctypes.c_uint64()
        entry = c.PolicyEntry(host_pid=1, ns_pid=1)
        own = region.lib.sluice_policy_own_slot
        policy = ctypes.byref(region.policy)
        assert own(policy, 7, ctypes.byref(entry), ctypes.byref(self.generation)) == 0

    def run(self) -> None:
        kept = []
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                break
            self.asked += 1
            if self.asked <= self.hang_up:
                connection.close()
                continue
            connection.recv(64)
            reply = c.RegisterReply(
                magic=c.REGISTER_MAGIC,
                version=c.REGISTER_VERSION,
                slot=7,
                generation=self.generation.value,
            )
            connection.send(bytes(reply))
            kept.append(connection)
        for connection in kept:
            connection.close()

    def __enter__(self) -> Door:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.join(60)


@pytest.mark.parametrize("hang_up", [0, 1, 3])
def test_who_is_hung_up_on_asks_again(region: Region, hang_up: int) -> None:
    with Door(region, hang_up) as door:
        assert becomes(region, 0)["error"] == 0
    assert door.asked == hang_up + 1
    assert claims(region) == []
    assert region.usage.slot[7].generation_seen == door.generation.value


def test_who_is_never_heard_takes_a_slot_by_itself_after_a_few_tries(region: Region) -> None:
    with Door(region, 1 << 30) as door:
        assert becomes(region, 0)["error"] == 0
    assert claims(region) == [0]
    assert 2 <= door.asked <= 12
