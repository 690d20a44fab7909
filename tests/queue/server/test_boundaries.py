"""No message, file or bit keeps the service from starting, or stops it for good.

Every field of every request, found in the descriptors, gets every boundary of its type, from a caller with every
right; and the database gets flipped bits and cuts. What comes back is a status, or one clear line; what was there
stays; and the next start finds a sound queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import sqlite3
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor as F

from queuecontroller.server import standalone
from queuecontroller.server.api.calls import Calls, _read, status_of
from queuecontroller.server.api.nodes import NodesApi
from queuecontroller.server.api.users import UsersApi
from queuecontroller.server.api.wire import NODES, QUEUES, Wire, find_descriptors
from queuecontroller.server.callers.fair_calls import FairCalls
from queuecontroller.server.config import Settings
from queuecontroller.server.store.sqlite import SqliteStore, StoreUnusable
from queuecontroller.state.access import Caller
from queuecontroller.state.applying import at_once
from queuecontroller.state.objects.catalogue import Identity
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import StoreLost
from queuecontroller.state.shell import Shell
from sluicecommon.reader import ManifestError
from sluicecommon.sd_notify import SdNotify
from tests.queue.state.world import TEAMS, documents

WIRE = Wire(find_descriptors())
EVERYBODY = Caller(
    user="root", admin=True, nodes=frozenset({"*"}), checks=frozenset({"budget"}), shown="root"
)
WHOLE = (0, 1, -1, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, -(2**63), 2**63, 2**64 - 1)
RANGES = {
    **dict.fromkeys((F.TYPE_INT32, F.TYPE_SINT32), (-(2**31), 2**31 - 1)),
    **dict.fromkeys((F.TYPE_INT64, F.TYPE_SINT64), (-(2**63), 2**63 - 1)),
    F.TYPE_UINT32: (0, 2**32 - 1),
    F.TYPE_UINT64: (0, 2**64 - 1),
    F.TYPE_ENUM: (0, 2**31 - 1),
}
FRACTIONS = (0.0, -1.0, 1e308, float("inf"), float("-inf"), float("nan"), 5e-324)
NOT_UTF8 = "\x01not-utf8\x01"
"""Replaced by bytes of the same length in the message as it goes over the wire."""
TEXTS = ("", "x", "\0", "a/b", "n\n1", "../../x", "é", "[[[[", "5", "x" * (1 << 20), NOT_UTF8)
DEEPEST = 4


def boundaries(field: Any) -> tuple[Any, ...]:
    if field.type in RANGES:
        low, high = RANGES[field.type]
        return tuple(one for one in WHOLE if low <= one <= high)
    if field.type in (F.TYPE_DOUBLE, F.TYPE_FLOAT):
        return FRACTIONS
    if field.type == F.TYPE_BOOL:
        return (True, False)
    return TEXTS


def is_repeated(field: Any) -> bool:
    return bool(
        field.is_repeated if hasattr(field, "is_repeated") else field.label == F.LABEL_REPEATED
    )


def cases(message: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """(field=value, a message like this one but for that field)."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for value in boundaries(field.message_type.fields_by_name["value"]):
                for key in TEXTS:
                    made = copy.deepcopy(message)
                    getattr(made, field.name)[key] = value
                    yield f"{field.name}[{key[:9]!r}]={str(value)[:20]!r}", made
        elif field.message_type is not None:
            if depth == DEEPEST:
                continue
            for what, inner in cases(type_of(field)(), depth + 1):
                made = copy.deepcopy(message)
                if is_repeated(field):
                    del getattr(made, field.name)[:]
                    getattr(made, field.name).append(inner)
                else:
                    getattr(made, field.name).CopyFrom(inner)
                yield f"{field.name}.{what}", made
        else:
            for value in boundaries(field):
                made = copy.deepcopy(message)
                if is_repeated(field):
                    del getattr(made, field.name)[:]
                    getattr(made, field.name).extend([value, value])
                else:
                    setattr(made, field.name, value)
                yield f"{field.name}={str(value)[:20]!r}", made


def type_of(field: Any) -> Any:
    return getattr(WIRE, field.message_type.name)


def plain(name: str, epoch: int) -> Any:
    """A request that is all right, so that one wrong field is not hidden behind another."""
    here = {"kind": "Workload", "namespace": "team-a", "name": "honest"}
    known: dict[str, dict[str, Any]] = {
        "NodeHello": {"node": "n1", "waiting": ["team-a/honest"]},
        "NodeReport": {"node": "n1", "epoch": epoch, "sequence": 1},
        "WatchDecisionsRequest": {"node": "n1", "epoch": epoch},
        "Confirmation": {"node": "n1", "epoch": epoch, "state": 2, "workload": "team-a/honest"},
        "ReleaseNotice": {"node": "n1", "epoch": epoch, "workload": "team-a/honest"},
        "NodeNews": {"node": "n1", "epoch": epoch},
        "FollowWaitingRequest": {"node": "n1", "epoch": epoch, "workloads": ["team-a/honest"]},
        "ApplyRequest": {},
        "SubmitRequest": {"namespace": "team-a", "queue": "q", "ask": {"gpus": 1, "memory_ppm": 1, "share_ppm": 1}},
        "ObjectRef": here,
        "HoldRequest": {"object": here},
        "ListRequest": {"kind": "Workload"},
        "GetServerRequest": {},
        "QueuePageRequest": {},
    }  # fmt: skip
    return getattr(WIRE, name)(**known[name])


class Service:
    """All of the controller but its sockets and its loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = SqliteStore(path)
        # Thousands of commits; that they are durable is shown elsewhere.
        self.store._db.execute("PRAGMA synchronous = OFF")
        self.shell: Shell = standalone.take_over(Settings(), self.store, SdNotify(None))
        self.shell._reason = ""
        calls = Calls(self.shell, None, None, FairCalls())  # type: ignore[arg-type]  # no doors here
        self.apis = {
            NODES: NodesApi(self.shell, WIRE, calls, 5.0),
            QUEUES: UsersApi(self.shell, WIRE, calls, "test"),
        }

    def call(self, service: str, name: str, raw: bytes) -> str:
        """The status, as a caller would get it. Raises what would be a defect."""
        method = WIRE.methods(service)[name]
        special = {
            "WatchDecisions": "_watch",
            "GetServer": "_server",
            "OpenPage": "_page",
            "FollowWaiting": "_follow_waiting",
        }
        own = special.get(name, f"_{name.lower()}")
        try:
            request = _read(method, raw)
            call = getattr(self.apis[service], own)
            if method.streams:
                asyncio.run(_first(call, request))
            else:
                answer = call(request, EVERYBODY)
                answer = at_once(answer) if isinstance(answer, Generator) else answer
                answer.SerializeToString()
                self.shell.writer.flush()
        except Exception as error:
            found = status_of(error)
            if found is None:
                raise
            return str(found[0].name)
        return "OK"

    def honest(self) -> None:
        """A node and a user that do nothing wrong are served."""
        hello = WIRE.NodeHello(node="n1", capacity={"gpus": [{"uuid": "GPU-0", "memory_bytes": 80 << 30, "share_ppm": 1_000_000, "slots": 10}]})  # fmt: skip
        assert self.call(NODES, "Connect", hello.SerializeToString()) == "OK"
        for name in ("Delete", "Submit", "Get"):
            request = plain("SubmitRequest" if name == "Submit" else "ObjectRef", 0)
            request.name = "honest"
            assert self.call(QUEUES, name, request.SerializeToString()) in ("OK", "NOT_FOUND")
        assert self.shell.book.find("team-a", "honest")
        assert self.shell.book.contradictions() == []

    def restart(self) -> Service:
        self.store.close()
        return Service(self.path)


async def _first(call: Any, request: Any) -> None:
    async with contextlib.aclosing(call(request, EVERYBODY)) as messages:
        with contextlib.suppress(StopAsyncIteration):
            async with asyncio.timeout(5):
                (await anext(messages)).SerializeToString()


METHODS = [(service, name) for service in (NODES, QUEUES) for name in WIRE.methods(service)]


def _tried(path: Path, service: str, name: str, part: int) -> int:
    """Every `part`th case; how many."""
    running = Service(path)
    running.shell.step("apply", lambda book, now: book.apply(documents(TEAMS), False, now))
    running.honest()
    before = {one.id for one in map(_who, running.shell.book.catalogue.records.values())}
    term = running.shell.book.journal.term
    epoch = running.shell.book.nodes.nodes["n1"].record.epoch
    method = WIRE.methods(service)[name]
    tried = 0
    for what, request in list(cases(plain(method.request.DESCRIPTOR.name, epoch)))[::part]:
        raw = request.SerializeToString()
        raw = raw.replace(NOT_UTF8.encode(), b"\xff" * len(NOT_UTF8))
        try:
            running.call(service, name, raw)
        except Exception as error:
            raise AssertionError(f"{name}: {what}") from error
        tried += 1
    assert running.shell.book.contradictions() == []
    assert running.shell.book.journal.term == term, "no request moves the term"
    again = running.restart()
    assert {one.id for one in map(_who, again.shell.book.catalogue.records.values())} >= before
    again.honest()
    again.store.close()
    return tried


def _who(record: Any) -> Any:
    return Identity(record.kind, record.namespace, record.name)


@pytest.mark.parametrize(("service", "name"), METHODS, ids=[name for _, name in METHODS])
def test_boundaries_of_every_field(tmp_path: Path, service: str, name: str) -> None:
    assert _tried(tmp_path / "queue.sqlite", service, name, 5) >= (
        name not in ("GetServer", "OpenPage")
    )


@pytest.mark.full
@pytest.mark.parametrize(("service", "name"), METHODS, ids=[name for _, name in METHODS])
def test_all_boundaries_of_every_field(tmp_path: Path, service: str, name: str) -> None:
    assert _tried(tmp_path / "queue.sqlite", service, name, 1) >= (
        name not in ("GetServer", "OpenPage")
    )


def test_noise_in_the_place_of_a_message(tmp_path: Path) -> None:
    running = Service(tmp_path / "queue.sqlite")
    rng = random.Random(4)
    for service, name in METHODS:
        for length in (1, 2, 7, 100, 5000):
            running.call(service, name, rng.randbytes(length))
    running.store.close()


# --- the database --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database with something of everything in it."""
    path = tmp_path_factory.mktemp("sound") / "queue.sqlite"
    running = Service(path)
    running.shell.step("apply", lambda book, now: book.apply(documents(TEAMS), False, now))
    running.honest()
    for number in range(30):
        request = plain("SubmitRequest", 0)
        request.name = f"w{number}"
        assert running.call(QUEUES, "Submit", request.SerializeToString()) == "OK"
    for _ in range(3):
        running.shell._cycle()
    running.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    running.store.close()
    return path.read_bytes()


def _damaged(sound: bytes, rng: random.Random) -> bytes:
    raw = bytearray(sound)
    if rng.random() < 0.2:
        return bytes(raw[: rng.randrange(len(raw))])
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        at = rng.randrange(len(raw)) if rng.random() < 0.6 else rng.randrange(min(4096, len(raw)))
        raw[at] ^= 1 << rng.randrange(8)
    return bytes(raw)


def _opened(path: Path) -> bool:
    """True if the store opens; otherwise the error is one that the service reports in one line."""
    try:
        store = SqliteStore(path)
    except (StoreUnusable, StoreLost) as error:
        return _told(error)
    store._db.execute("PRAGMA synchronous = OFF")
    try:
        shell = standalone.take_over(Settings(), store, SdNotify(None))
        shell.store.events("Workload/team-a/honest", 5)
    except (StoreUnusable, StoreLost, ManifestError) as error:
        return _told(error)
    finally:
        store.close()
    return True


def _told(error: Exception) -> bool:
    assert str(error)
    assert isinstance(error, ManifestError) or "\n" not in str(error)
    return False


def _flips(tmp_path: Path, sound: bytes, count: int, seed: int) -> None:
    rng = random.Random(seed)
    started = 0
    (tmp_path / "queue.sqlite.key").write_text("ab" * 32)
    path = tmp_path / "queue.sqlite"
    for number in range(count):
        raw = _damaged(sound, rng)
        path.write_bytes(raw)
        for beside in ("-wal", "-shm"):
            Path(f"{path}{beside}").unlink(missing_ok=True)
        try:
            started += _opened(path)
        except Exception as error:
            kept = tmp_path / f"damaged-{number}.sqlite"
            kept.write_bytes(raw)
            raise AssertionError(f"case {number} of seed {seed}, kept as {kept}") from error
    assert 0 < started < count, "some are damaged where no reader looks, and some are not"
    path.write_bytes(sound)
    assert _opened(path)


def test_flipped_bits_and_cuts_in_the_database(tmp_path: Path, sound: bytes) -> None:
    _flips(tmp_path, sound, 150, 7)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_thousands_of_flipped_bits_and_cuts(tmp_path: Path, sound: bytes, seed: int) -> None:
    _flips(tmp_path, sound, 1000, seed)


def test_damage_in_the_schema_itself_is_told(tmp_path: Path) -> None:
    """Text of sqlite_master that is no UTF-8: SQLite's reader raises no error of its own."""
    path = tmp_path / "queue.sqlite"
    SqliteStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET name = CAST(x'ff41fe' AS TEXT) WHERE name = 'nodes'")
    db.close()
    with pytest.raises((StoreUnusable, StoreLost), match=r"restore a backup|nodes"):
        SqliteStore(path).load()


def test_refused_is_what_a_broken_message_is() -> None:
    with pytest.raises(Refused, match="cannot be read"):
        _read(WIRE.methods(QUEUES)["Get"], b"\xff\xff\xff\xff")
