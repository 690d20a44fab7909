"""Disks that are full, fail, turn read-only, lie and lose their power; databases that come back damaged."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.ledger.sqlite_file import LedgerTooNew
from nodeagent.ports.ledger import LedgerLost
from queuecontroller.server.store.sqlite import SqliteStore, StoreUnusable
from queuecontroller.state.records import StoreLost
from tests.faults.filesystems import ext4, fill, small_tmpfs
from tests.faults.grants import attached, processes, refused, registered
from tests.faults.programs import build
from tests.faults.programs.writer import BOOT
from tests.kit.daemon.harness import daemon, until
from tests.kit.places import REPO, preloaded
from tests.kit.workplace import workplace


@contextlib.contextmanager
def daemon_on(disk: Callable[[Path], contextlib.AbstractContextManager[Any]]) -> Iterator[Any]:
    """A daemon that is not started yet, and the disk below its state directory."""
    with daemon(start=False) as node, contextlib.ExitStack() as mounted:
        made = mounted.enter_context(disk(node.directory / "st"))
        try:
            yield node, made
        finally:
            if node.process is not None and node.process.poll() is None:
                node.kill()


@pytest.mark.faults
@pytest.mark.root
def test_d2_on_a_full_disk_grants_live_in_their_regions_until_there_is_room() -> None:
    """The regions are on another disk and hold a copy of each grant: what is granted meanwhile is not lost either."""
    with daemon_on(lambda root: small_tmpfs(root, 768)) as (node, state):
        node.start()
        job = registered(node, "before")
        filler = fill(state)
        full = "the ledger is full"
        for _ in range(2000):  # what is left in the write-ahead log is used up first
            said = refused(node)
            assert said == "" or "full" in said
            if full in node.log.read_text():
                break
        assert full in node.log.read_text(), "it never was full"
        late = registered(node, "late")
        assert "Traceback" not in node.log.read_text()
        assert node.process is not None
        assert node.process.poll() is None
        assert job.do("entry", 0)["generation"] % 2 == 1
        assert (processes(node, "before"), processes(node, "late")) == (1, 1)
        node.kill()
        filler.unlink()
        node.start()
        assert (processes(node, "before"), processes(node, "late")) == (1, 1), "nothing is lost"
        told = len(node.log.read_text())
        until("there is room again", lambda: not refused(node))
        assert full not in node.log.read_text()[told:]
        late.kill()
        until("it is over", lambda: processes(node, "late") == 0)
        node.kill()
        node.start()
        assert [one.name for one in node.grants()] == ["before"], "and nothing comes back"


@pytest.mark.root
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace makes the calls fail")
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_d3_a_sync_that_fails_is_never_taken_for_one_that_did_not(error: str) -> None:
    with daemon() as node:
        job = registered(node, "before")
        assert node.process is not None
        tracer = attached(node.process.pid, "fsync,fdatasync", f"error={error}")
        try:
            assert refused(node), "what may not be on the disk is not granted"
            if error == "EIO":
                assert node.process.wait(60) == 75
        finally:
            tracer.terminate()
            tracer.wait(60)
        if node.process.poll() is None:
            node.kill()
        node.start()
        assert processes(node, "before") == 1
        assert job.do("entry", 0)["generation"] % 2 == 1
        assert refused(node) == ""


@pytest.mark.faults
@pytest.mark.root
def test_a_disk_that_turns_read_only_ends_the_daemon_and_nobody_else() -> None:
    with workplace() as place, daemon_on(lambda root: ext4(place, root)) as (node, disk):
        node.start()
        job = registered(node, "before")
        disk.turn_read_only()
        assert refused(node)
        assert node.process is not None
        assert node.process.wait(60) == 75, node.log.read_text()
        assert job.do("entry", 0)["generation"] % 2 == 1
        disk.unmount()
        disk.mount()
        node.start()
        assert processes(node, "before") == 1
        assert refused(node) == ""
        job.kill()
        until("the grant ends", lambda: not node.grants())
        assert node.stop() == 0
        disk.unmount()
        disk.mount()


class Writing:
    """writer.py on a disk, and what it said was durable."""

    def __init__(self, kind: str, path: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.programs.writer", kind, path],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=REPO,
            env=os.environ | environment,
            bufsize=0,  # what is read here is not kept back from so_far()
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"begin\n"
        self._said = b""

    def so_far(self) -> list[int]:
        """Numbers printed until now, whole lines only."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            part = self.process.stdout.read(1 << 16)
            if not part:
                break
            self._said += part
        return [int(line) for line in self._said.split(b"\n")[:-1]]

    def acknowledged(self) -> list[int]:
        """All that it said; ends it."""
        self.process.kill()
        self.process.wait(60)
        found = self.so_far()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return found


def written(kind: str, path: Path) -> set[int]:
    """Rows that are there after the disk came back."""
    if kind == "ledger":
        ledger = SqliteLedger(path, BOOT)
        try:
            assert not ledger.was_rebuilt, "a power cut is no damage"
            return {one.number for one in ledger.holds()}
        finally:
            ledger.close()
    store = SqliteStore(path)
    try:
        assert store.load().revision >= 0
        with contextlib.closing(sqlite3.connect(path)) as db:
            return {row[0] for row in db.execute("SELECT revision FROM events")}
    finally:
        store.close()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ledger", "queue"])
@pytest.mark.parametrize("cuts", [6, pytest.param(60, marks=pytest.mark.faults)])
def test_power_cuts_lose_nothing_that_was_answered(kind: str, cuts: int) -> None:
    chance = random.Random(cuts)
    told: set[int] = set()
    with workplace() as place, ext4(place) as disk:
        path = disk.root / "state" / "rows.sqlite"
        for _ in range(cuts):
            writing = Writing(kind, path)
            time.sleep(chance.uniform(0.0, 0.25))  # the moment of the cut is the input
            # Not what it says afterwards: an fsync that is under way while a file system is shut down may come
            # back without an error (jbd2_complete_transaction of an aborted journal), which no cut of the power does.
            told |= set(writing.so_far())
            disk.cut_the_power()
            writing.acknowledged()
            disk.unmount()
            disk.mount()
            lost = told - written(kind, path)
            assert not lost, f"answered and gone: {sorted(lost)[:10]}"
        assert len(told) > 3 * cuts, "hardly anything was written: nothing was tried"


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ledger", "queue"])
def test_a_disk_that_lies_is_no_reason_to_crash(kind: str) -> None:
    """Acknowledged rows may be gone; then the ledger is in its earlier state, or was moved aside,
    and the controller reports that."""
    chance = random.Random(3)
    with workplace() as place, ext4(place) as disk:
        path = disk.root / "state" / "rows.sqlite"
        for _ in range(6):
            writing = Writing(kind, path, LD_PRELOAD=preloaded(build.liar()))
            time.sleep(chance.uniform(0.0, 0.25))
            disk.cut_the_power()
            writing.acknowledged()
            disk.unmount()
            disk.mount()
            try:
                if kind == "ledger":
                    SqliteLedger(path, BOOT).close()
                else:
                    SqliteStore(path).close()
            except StoreUnusable:
                for file in path.parent.iterdir():
                    file.unlink()


def damaged(good: bytes, chance: random.Random) -> bytes:
    data = bytearray(good)
    match chance.randrange(5):
        case 0:
            del data[chance.randrange(len(data)) :]
        case 1:
            for _ in range(chance.randrange(1, 8)):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        case 2:
            at = chance.randrange(len(data))
            data[at : at + 512] = bytes(len(data[at : at + 512]))
        case 3:
            at = chance.randrange(len(data))
            data[at : at + 64] = chance.randbytes(len(data[at : at + 64]))
        case _:  # the first page, where the schema is
            data[chance.randrange(min(len(data), 4096))] ^= 1 << chance.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("kind", ["ledger"])
@pytest.mark.parametrize("files", [150, pytest.param(3000, marks=pytest.mark.faults)])
def test_d5_a_damaged_database_is_put_aside_or_refused_in_a_sentence(
    tmp_path: Path, kind: str, files: int
) -> None:
    good_path = tmp_path / "good.sqlite"
    writing = Writing(kind, good_path)
    assert writing.process.stdout is not None
    for _ in range(40):
        select.select([writing.process.stdout], [], [], 60)
        writing.process.stdout.readline()
    writing.acknowledged()
    with contextlib.closing(sqlite3.connect(good_path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    good = good_path.read_bytes()
    chance = random.Random(files)
    outcomes = dict.fromkeys(("opened", "rebuilt", "refused"), 0)
    for number in range(files):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = directory / "rows.sqlite"
        path.write_bytes(damaged(good, chance))
        try:
            if kind == "ledger":
                ledger = SqliteLedger(path, BOOT)
                outcomes["rebuilt" if ledger.was_rebuilt else "opened"] += 1
                ledger.holds(), ledger.load(), ledger.load_queue(), ledger.driver_files()
                ledger.close()
            else:
                store = SqliteStore(path)
                try:
                    store.load()
                finally:
                    store.close()
                outcomes["opened"] += 1
        except (LedgerLost, LedgerTooNew, StoreUnusable, StoreLost) as error:
            outcomes["refused"] += str(path) in str(error)  # and not merely thrown
        shutil.rmtree(directory)
    assert outcomes["rebuilt"] + outcomes["refused"] > files // 20, outcomes
    assert outcomes["opened"] > 0, outcomes


@pytest.mark.faults
@pytest.mark.parametrize("out", ["full", "closed"])
def test_d9_without_a_place_for_its_log_the_daemon_keeps_running(out: str) -> None:
    with daemon(start=False) as node:
        words = [sys.executable, "-m", "tests.kit.daemon.fake_node", "--config", str(node.config)]
        redirect = ">/dev/full 2>/dev/full" if out == "full" else ">&- 2>&-"
        node.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *words],
            cwd=REPO,
            env=node.environment(),
            stdin=subprocess.DEVNULL,
        )
        until("it answers", lambda: node.socket.exists() and not refused(node))
        node.log.write_text("")
        job = registered(node, "job")
        assert [refused(node) for _ in range(20)] == [""] * 20
        job.kill()
        until("its grants end", lambda: not node.grants())
        assert node.process.poll() is None
