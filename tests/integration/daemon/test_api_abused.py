"""The daemon's socket under hostile callers: messages that no client sends, silent connections,
far too many of everything, and a machine without free file descriptors."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from nodeagent import native
from nodeagent.adapters.api.wire import SERVICE, Wire
from nodeagent.ports.clients import GrantAsk, MemoryAsk, RefusalKind, Refused
from nodeagent.units import MIB, Ppm, SharePolicy
from tests.kit.daemon.harness import Daemon, daemon, until

NUMBERS = (0, 1, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 1)
FLOATS = (0.0, -1.0, 1e308, float("inf"), float("nan"), float(1 << 63))
TEXTS = (b"", b"x", b"\xff\xfe\x00", b"\xed\xa0\x80", b"x" * 60_000, b"x" * (1 << 20))
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,  # a stream that has no end, and that we left
}
SMALL = GrantAsk(1, MemoryAsk(amount_bytes=MIB), Ppm(10_000), SharePolicy.ELASTIC)


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    with daemon('[detection]\ngrants = "observe"\n') as made:
        os.chmod(made.directory, 0o755)
        yield made


@pytest.fixture
def wire() -> Wire:
    return Wire(native.locate().wire_descriptors)


def varint(value: int) -> bytes:
    out = b""
    while True:
        value, low = value >> 7, value & 0x7F
        out += bytes([low | (0x80 if value else 0)])
        if not value:
            return out


def delimited(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def bodies(descriptor: Any, depth: int = 0) -> Iterator[bytes]:
    """Every boundary value in every field, one at a time, also below."""
    for field in descriptor.fields:
        kind = field.type
        if kind == field.TYPE_MESSAGE:
            yield delimited(field.number, b"")
            yield delimited(field.number, b"\xff\xff\xff")
            if depth < 2:
                for inner in bodies(field.message_type, depth + 1):
                    yield delimited(field.number, inner)
        elif kind in (field.TYPE_STRING, field.TYPE_BYTES):
            for text in TEXTS:
                yield delimited(field.number, text)
        elif kind == field.TYPE_DOUBLE:
            for value in FLOATS:
                yield varint(field.number << 3 | 1) + struct.pack("<d", value)
        else:
            for number in NUMBERS:
                yield varint(field.number << 3) + varint(number)
            yield delimited(field.number, b"".join(varint(number) for number in NUMBERS))


def call(channel: grpc.Channel, method: str, is_stream: bool, raw: bytes) -> grpc.StatusCode:
    """The status; of a stream its first answer's."""
    try:
        if not is_stream:
            channel.unary_unary(f"/{SERVICE}/{method}")(raw, timeout=60)
            return grpc.StatusCode.OK
        answers = channel.unary_stream(f"/{SERVICE}/{method}")(raw, timeout=5)
        for _ in answers:
            answers.cancel()
            break
        return grpc.StatusCode.OK
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        if is_stream and code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return grpc.StatusCode.CANCELLED
        return code


def channel_to(node: Daemon) -> grpc.Channel:
    return grpc.insecure_channel(
        f"unix:{node.socket}",
        options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
    )


def release_all(node: Daemon) -> None:
    with node.client() as client:
        for grant in client.list_grants():
            client.release_grant(grant.grant)


@pytest.mark.timeout(900)
def test_every_boundary_value_of_every_call_is_an_answer_and_no_traceback(
    node: Daemon, wire: Wire
) -> None:
    dice = random.Random(7)
    methods = wire.methods()
    assert len(methods) >= 15
    cases = 0
    before = len(node.log.read_text())
    with channel_to(node) as channel:
        for method, (request, _response, is_stream) in methods.items():
            raws = [b"", b"\xff" * 64, dice.randbytes(200), *bodies(request.DESCRIPTOR)]
            for raw in raws:
                code = call(channel, method, is_stream, raw)
                cases += 1
                assert code in EXPECTED, (method, raw[:80], code)
                if len(raw) == 64:
                    assert code is grpc.StatusCode.INVALID_ARGUMENT, (method, code)
        assert call(channel, "NoSuchCall", False, b"") is grpc.StatusCode.UNIMPLEMENTED
    assert cases > 300
    release_all(node)
    log = node.log.read_text()[before:]
    assert "Traceback" not in log, log
    assert node.sluice("ps").returncode == 0


CROWD = """
import os, socket, sys, time
path, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
crowd = []
for _ in range(count):
    one = socket.socket(socket.AF_UNIX)
    one.connect(path)
    one.setblocking(False)
    crowd.append(one)
print("there", flush=True)
while True:
    left = 0
    for one in crowd:
        try:
            left += one.recv(1) != b""
        except BlockingIOError:
            left += 1
        except OSError:
            pass
    print(left, flush=True)
    if sys.stdin.readline() == "":
        break
"""


@contextlib.contextmanager
def crowd(node: Daemon, uid: int, count: int) -> Iterator[Any]:
    """`count` silent connections of a user; yields a function that counts those still open."""
    child = subprocess.Popen(
        [sys.executable, "-c", CROWD, node.socket, str(uid), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None

    def left() -> int:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        return int(child.stdout.readline())

    try:
        assert child.stdout.readline() == "there\n"
        child.stdout.readline()
        yield left
    finally:
        child.kill()
        child.wait(60)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="takes other uids")
def test_silent_connections_of_two_users_lock_nobody_out_and_are_ended(node: Daemon) -> None:
    with crowd(node, 65534, 300) as one, crowd(node, 65533, 300) as two:
        assert node.sluice("ps").returncode == 0, "root"
        done = node.sluice("ps", as_nobody=True)
        assert done.returncode == 0, done.stderr
        until("they are ended", lambda: one() == 0 and two() == 0)
    assert "Traceback" not in node.log.read_text()


def test_malformed_messages_without_end_fill_no_log(node: Daemon) -> None:
    before = node.log.stat().st_size
    with channel_to(node) as channel:
        for _ in range(2000):
            code = call(channel, "ListGrants", False, b"\xff" * 16)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert node.log.stat().st_size - before < 2000
    assert node.sluice("ps").returncode == 0


WATCHERS = """
import os, sys, grpc, grpc._channel, encodings.idna
path, count = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
options = [("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
refused, streams = 0, []
for number in range(count):
    if number % 50 == 0:
        channel = grpc.insecure_channel("unix:" + path, options=options)
    stream = channel.unary_stream("/sluice.v1.Node/Watch")(b"")
    try:
        next(stream)
        streams.append((channel, stream))
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error
        refused += 1
print(refused, flush=True)
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="takes another uid")
def test_watchers_of_one_user_are_bounded(node: Daemon) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WATCHERS, node.socket, "200"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "184\n", done.stderr


def test_out_of_descriptors_it_refuses_politely_and_tenants_notice_nothing() -> None:
    """64 are allowed: some twenty are the daemon's own."""
    with daemon('[detection]\ngrants = "contain"\n', start=False) as node:
        node.start({"SLUICE_TEST_NOFILE": "64"})
        tenants = []
        reasons: list[str] = []
        kinds: set[RefusalKind] = set()
        with contextlib.suppress(AssertionError):
            for number in range(4):
                tenant = node.run("--gpumem", "1Mi", "--cores", "5", "--name", f"t{number}")
                tenants.append(tenant)
                assert tenant.do("register")["error"] == 0
        assert tenants, "there is room for one"
        with node.client() as client:
            for _ in range(30):
                try:
                    list(client.create_grant(SMALL))
                except Refused as refused:
                    reasons.append(refused.reason)
                    kinds.add(refused.kind)
        assert kinds == {RefusalKind.EXHAUSTED}
        assert "no file descriptors left" in reasons[-1]
        silent = []
        for _ in range(200):
            one = socket.socket(socket.AF_UNIX)
            one.settimeout(10)
            one.connect(str(node.socket))
            silent.append(one)
        until("root is served", lambda: node.sluice("ps").returncode == 0)
        for one in silent:
            one.close()
        with node.client() as client:
            for grant in client.list_grants():
                if not grant.name:
                    client.release_grant(grant.grant)
        assert node.process is not None
        assert node.process.poll() is None
        log = node.log.read_text()
        assert "Traceback" not in log, log
        assert "only 64 file descriptors are allowed" in log
        for tenant in tenants[:1]:
            assert tenant.do("register")["error"] == 0
        started_s = time.monotonic()
        node.kill()
        node.start()
        assert time.monotonic() - started_s < 60
        assert {one.name for one in node.grants()} >= {"t0"}
