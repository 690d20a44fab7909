"""Networks that work in one direction only, are slow, lose or cut; a leader that slept; certificates that are not good."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.state.access import Caller
from tests.kit.node import Node, until
from tests.kit.queue.controller import SLUICE_QUEUE, QueueController
from tests.kit.workplace import workplace
from tests.queue.server.callers import Party, callers, message
from tests.queue.server.certificates import Authority, Pair
from tests.queue.serving.cable import CONTROLLER, NODE, Cable, NodeInSpace, _ip, both, cable
from tests.queue.serving.puppet import Puppet
from tests.queue.serving.puppet import until as eventually
from tests.queue.state.world import TEAMS

__all__ = ["both", "cable"]
pytestmark = [pytest.mark.root, pytest.mark.faults]


@pytest.mark.parametrize("deaf", [0, 1], ids=["the controller's words", "the node's words"])
def test_g2_one_direction_alone_is_as_good_as_none(
    cable: Cable, both: tuple[QueueController, NodeInSpace], deaf: int
) -> None:
    """Work goes on, nothing starts after the lease, and what waited starts once the other direction is back."""
    controller, node = both
    flags = ("--queue", "q", "--gpumem", "8Gi", "--cores", "30")
    first = node.run("first", "sleep", "600", flags=flags)
    until("first runs", lambda: node.grant("first"))
    far = NODE if deaf == 0 else CONTROLLER
    _ip("-n", cable.spaces[deaf], "route", "add", "blackhole", f"{far}/32")
    log = node.directory / "daemon.log"
    until("the lease is over", lambda: "session ended" in log.read_text(), 60)
    late = node.run("late", "sleep", "600", flags=flags)
    time.sleep(2)  # not for logic: a wrong start would show itself within this time
    assert node.grant("late") is None
    assert node.grant("first") is not None
    assert first.process.poll() is None
    _ip("-n", cable.spaces[deaf], "route", "del", "blackhole", f"{far}/32")
    until("late runs, soon after it is back", lambda: node.grant("late"), 120)
    assert late.process.poll() is None
    assert [one["status"]["attempt"] for one in controller.workloads()] == [1, 1]


# --- a cable that is slow, and one that loses ------------------------------------------------------


class Wire:
    """A relay between a node and the controller that does to what passes what a bad network does to TCP: all of it
    late, few bytes a second, a part held up as by a packet that was lost and sent again, connections cut. What was sent
    before an end closed arrives still, as late as all else; a connection is open until one of its ends has closed it."""

    def __init__(self, path: Path, target: Path, seed: int = 7) -> None:
        self.path, self.target = path, target
        self.late_s = self.held_up_ratio = self.cut_ratio = 0.0
        self.bytes_a_second = 0
        self.open = self.most_open = self.late_bytes = 0
        self._transports: set[asyncio.WriteTransport] = set()
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        made = asyncio.run_coroutine_threadsafe(
            asyncio.start_unix_server(self._relay, str(path)), self._loop
        )
        self._server = made.result(30)

    def heal(self) -> None:
        self.late_s = self.held_up_ratio = self.cut_ratio = 0.0
        self.bytes_a_second = 0

    def switch(self, target: Path) -> None:
        """To another controller; what was open is cut."""
        self.target = target
        self._loop.call_soon_threadsafe(lambda: [one.abort() for one in list(self._transports)])

    def close(self) -> None:
        """Close with all of its tasks: a task left pending would end in another test, wherever
        memory is swept there."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_unix_connection(str(self.target))
        except OSError:
            writer.close()
            return
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        mine = {writer.transport, far_writer.transport}
        self._transports |= mine
        here, there = asyncio.Queue[bytes](), asyncio.Queue[bytes]()
        reads = [
            asyncio.ensure_future(self._read(reader, there)),
            asyncio.ensure_future(self._read(far_reader, here)),
        ]
        writes = [
            asyncio.ensure_future(self._write(there, far_writer)),
            asyncio.ensure_future(self._write(here, writer)),
        ]
        try:
            await asyncio.wait([*reads, *writes], return_when=asyncio.FIRST_COMPLETED)
            self.open -= 1
            if not any(one.done() for one in writes):  # closed, not cut
                await asyncio.wait(writes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in (*reads, *writes):
                one.cancel()
            self._transports -= mine
            for transport in mine:
                transport.abort()

    async def _read(self, reader: asyncio.StreamReader, passing: asyncio.Queue[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                passing.put_nowait(data)
        passing.put_nowait(b"")

    async def _write(self, passing: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await passing.get():
                delay_s = self.late_s
                if self._chance.random() < self.held_up_ratio:
                    delay_s += self._chance.uniform(0.2, 3)
                if self.bytes_a_second:
                    delay_s += len(data) / self.bytes_a_second
                if delay_s:
                    self.late_bytes += len(data)
                    await asyncio.sleep(delay_s)
                if self._chance.random() < self.cut_ratio:
                    return
                writer.write(data)
                await writer.drain()


BAD = {
    "2 s late": {"late_s": 2.0},
    "a fifth held up, some cut": {"held_up_ratio": 0.2, "cut_ratio": 0.02},
    "1 kbit/s": {"bytes_a_second": 125},
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_g3_a_bad_network_starts_nothing_twice_and_piles_nothing_up(bad: dict[str, float]) -> None:
    """The kernel's netem is not in every kernel; to TCP a lost packet is one that comes late. How fast things go
    meanwhile is not promised: that they go on, what runs undisturbed, what waits once the network is well again and each
    of them once."""
    with workplace() as place:
        controller = QueueController(
            place / "queue", settings=["nodes.lease_s=4", "nodes.report_s=0.5"]
        )
        wire = Wire(place / "wire.sock", controller.socket)
        section = f'[queue]\nserver = "unix:{wire.path}"\nnode_name = "n1"\nnamespace = "team-a"\n'
        node = Node(place / "node", gpus="1xh100-80gb", settings=section)
        flags = ("--queue", "q", "--gpumem", "2Gi", "--cores", "10")
        names = ["first", *(f"late-{i}" for i in range(3))]
        try:
            controller.start()
            controller.apply(TEAMS)
            node.start()
            jobs = [node.run(names[0], "sleep", "600", flags=flags)]
            until("first runs", lambda: node.grant("first"))
            for name, value in bad.items():
                setattr(wire, name, value)
            jobs += [node.run(name, "sleep", "600", flags=flags) for name in names[1:]]
            time.sleep(15)  # the time that it is bad for is the input
            assert wire.late_bytes > 0, "nothing passed while it was bad: nothing was tried"
            assert controller.http("/readyz")[0] == 200
            wire.heal()
            until("all run", lambda: all(map(node.grant, names)), 120)
            until(
                "the controller knows",
                lambda: phases(controller) == dict.fromkeys(names, "Running"),
            )
            assert [one.process.poll() for one in jobs] == [None] * 4, "what runs does not notice"
            assert {s["attempt"] for s in rows(controller).values()} == {1}, (
                "no workload started twice"
            )
            assert sorted(one["name"] for one in node.grants()) == sorted(names)
            log = (node.directory / "daemon.log").read_text()
            assert log.count(": made for pid ") == 4, "each got one grant, ever"
            assert wire.most_open <= 8, "connections do not pile up"
            assert "Traceback" not in controller.log + log
        except BaseException:
            print(controller.log, (node.directory / "daemon.log").read_text(), sep="\n---\n")
            raise
        finally:
            node.stop()
            controller.stop()
            wire.close()


def rows(controller: QueueController) -> dict[str, dict[str, Any]]:
    """Status of every workload in the controller, by the name its user gave it."""
    found = [(one["metadata"]["name"][:-9], one["status"]) for one in controller.workloads()]
    assert len(dict(found)) == len(found), f"one row for each submission, not {found}"
    return dict(found)


def phases(controller: QueueController) -> dict[str, str]:
    return {name: status["phase"] for name, status in rows(controller).items()}


# --- a leader that slept ------------------------------------------------------------------------


def test_g4_a_controller_that_slept_through_its_successor_writes_nothing_any_more() -> None:
    """Both processes are real; the second has the first one's database, as after a takeover. The first wakes up, the
    node's next word proves that there was another, and it ends by itself."""
    with workplace() as place:
        first = QueueController(place / "first", settings=["nodes.lease_s=4", "nodes.report_s=0.3"])
        second = QueueController(
            place / "second", settings=["nodes.lease_s=4", "nodes.report_s=0.3"]
        )
        wire = Wire(place / "wire.sock", first.socket)

        async def scene() -> None:
            async with Puppet(f"unix:{wire.path}") as node:
                mine = await asyncio.wait_for(node.wait("mine"), 120)
                assert first.process is not None
                os.kill(first.process.pid, signal.SIGSTOP)
                for file in first.directory.glob("queue.sqlite*"):
                    if file.suffix != ".lock":
                        shutil.copy(file, second.directory / file.name)
                await asyncio.to_thread(second.start)
                wire.switch(second.socket)
                other = await asyncio.wait_for(node.wait("other"), 120)
                # Now the node reaches the first one again, which believes that it leads.
                os.kill(first.process.pid, signal.SIGCONT)
                wire.switch(first.socket)
                status = await asyncio.wait_for(asyncio.to_thread(first.process.wait), 60)
                assert status == 76, first.log[-2000:]
                assert "another controller took over" in first.log
                assert sorted(node.keeper.started) == ["mine", "other"], "nothing of its was done"
                wire.switch(second.socket)
                for grant in (mine, other):
                    node.keeper.end(grant)
                await eventually("all is told", lambda: not node.ledger.works, 60)

        try:
            first.start()
            first.apply(TEAMS)
            asyncio.run(scene())
            until("it answers", second.is_ready)
            rows = {w["metadata"]["name"]: w["status"] for w in second.workloads()}
            assert {row["phase"] for row in rows.values()} == {"Finished"}
            assert {row["attempt"] for row in rows.values()} == {1}
        finally:
            if first.process is not None and first.process.poll() is None:
                os.kill(first.process.pid, signal.SIGCONT)
            first.stop()
            second.stop()
            wire.close()


# --- certificates -------------------------------------------------------------------------------


def test_g9_certificates_that_are_not_good_are_refused(tmp_path: Path) -> None:
    """Client certificates: expired, another authority's, self-signed, without a role. Server
    certificates: another's name, another authority's. There is no revocation list: certificates are
    to be short-lived (docs/security.md)."""
    foreign = Authority(tmp_path / "foreign")
    with callers(tmp_path / "service") as service:
        mine = service.authority
        expired = mine.issue("expired", "URI:sluice:admin:expired", days=0)
        until("it has expired", lambda: not still_good(expired.certificate))
        self_signed = Pair(foreign.ca, tmp_path / "foreign" / "ca.key")
        bad = {
            "expired": expired,
            "foreign": foreign.issue("admin", "URI:sluice:admin:admin"),
            "self-signed": self_signed,
        }
        for what, pair in bad.items():
            with contextlib.closing(service.channel(pair)) as channel:
                status, _ = Party(what, Caller(), channel).call(
                    "Queues/GetServer", message("GetServerRequest"), 10
                )
            assert status == "UNAVAILABLE", what
        nobody = service.party("nobody")
        status, said = nobody.call("Queues/GetServer", message("GetServerRequest"), 10)
        assert status == "PERMISSION_DENIED"
        assert "has no role here" in said
        admin = mine.issue("carol", "URI:sluice:admin:carol")
        for what, server, authority in (
            ("another name", f"127.0.0.1:{service.controller.port}", mine.ca),
            ("another authority", service.controller.tcp_address, foreign.ca),
        ):
            flags = ("--certificate", admin.certificate, "--key", admin.key, "--ca", authority)
            words = (SLUICE_QUEUE, "get", "nodes", "--server", server, *flags)
            done = subprocess.run(words, capture_output=True, text=True, timeout=60)
            assert done.returncode != 0, what
            assert "Traceback" not in done.stderr
            assert server in done.stderr, "it says whom it did not reach"
        carol = service.party("carol", "admin:carol")
        assert carol.call("Queues/GetServer", message("GetServerRequest"))[0] == "OK"
        assert "Traceback" not in service.controller.log


def still_good(certificate: Path) -> bool:
    done = subprocess.run(
        ["openssl", "x509", "-checkend", "0", "-noout", "-in", certificate], capture_output=True
    )
    return done.returncode == 0
