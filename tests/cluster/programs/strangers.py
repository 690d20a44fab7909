"""Clients without credentials, as many at each port as are asked for, until the time is over: silent, half-way through a
handshake or a request, and with requests of every kind.

`python -m tests.cluster.programs.strangers SECONDS COUNT PORT[:tls]...` prints for each port how many connections were
open, how many of them over TLS after a handshake, and the fewest of one kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import resource
import socket
import ssl
import sys
import time
from collections import Counter

ADDRESSES = 100
"""They come from 127.0.1.1 and up, the API server and honest clients from 127.0.0.1: limits are by address."""
PATIENCE_S = 15.0
REST_S = 20.0
"""Mean time between two connections of one stranger: a thousand make fifty handshakes a second at each port. Faster ones
are a flood, which takes a firewall."""
IP_BIND_ADDRESS_NO_PORT = 24
"""<linux/in.h>"""
LISTS = b"[" + b"[]," * 60_000 + b"[]]"


def request(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


KINDS: tuple[bytes | None, ...] = (
    None,  # It connects and says nothing.
    b"",  # A handshake where there is TLS, and no request.
    b"GET / HTTP/1.1\r\nx: ",
    b"\0" * 30_000,
    request("GET", "/"),
    request("GET", "/metrics"),
    request("GET", "/api/session", b"", "Authorization: Bearer x"),
    request("GET", "/apis/visibility.kueue.x-k8s.io/v1beta1/clusterqueues/a/pendingworkloads"),
    request("POST", "/api/enter", LISTS, "Content-Type: application/json", "X-Sluice-Page: 1"),
    *(
        request("POST", f"{path}{word}", LISTS, "Content-Type: application/json")
        for path in ("/convert", "/validate", "/mutate", "/shares", "/scheduler/bind")
        for word in ("", "/" + "0" * 32)
    ),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0",
)


CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""One for all: a new one costs more than a handshake."""
CONTEXT.check_hostname = False
CONTEXT.verify_mode = ssl.CERT_NONE


async def connected(address: str, port: int) -> socket.socket:
    """Raises OSError."""
    made = socket.socket()
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    except BaseException:
        made.close()
        raise
    return made


async def stranger(number: int, port: int, tls: bool, ends_s: float, seen: Counter[str]) -> None:
    address = f"127.0.1.{number % ADDRESSES + 1}"
    chance = random.Random(number)
    await asyncio.sleep(chance.uniform(0, 5.0))
    for turn in itertools.count(number):
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return
        sent = KINDS[turn % len(KINDS)]
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(min(left_s, PATIENCE_S)):
                wrapped = CONTEXT if tls and sent is not None else None
                plain = await connected(address, port)
                seen["connected"] += 1
                seen[f"kind {turn % len(KINDS)}"] += 1
                reader, writer = await asyncio.open_connection(
                    sock=plain, ssl=wrapped, server_hostname="x" if wrapped else None
                )
                seen["secured"] += wrapped is not None
                try:
                    writer.write(sent or b"")
                    while part := await reader.read(1 << 16):
                        seen["bytes"] += len(part)
                finally:
                    writer.transport.abort()
        await asyncio.sleep(min(chance.uniform(0, 2 * REST_S), max(0.0, ends_s - time.monotonic())))


async def run(seconds: float, count: int, ports: list[str]) -> dict[str, dict[str, int]]:
    ends_s = time.monotonic() + seconds
    seen: dict[str, Counter[str]] = {one: Counter() for one in ports}
    await asyncio.gather(
        *(
            stranger(number, int(one.partition(":")[0]), one.endswith(":tls"), ends_s, seen[one])
            for one in ports
            for number in range(count)
        )
    )
    return {
        one: {
            "connected": counted["connected"],
            "secured": counted["secured"],
            "fewest_of_a_kind": min(counted[f"kind {kind}"] for kind in range(len(KINDS))),
        }
        for one, counted in seen.items()
    }


def main() -> None:
    seconds, count, *ports = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(json.dumps(asyncio.run(run(float(seconds), int(count), ports))))


if __name__ == "__main__":
    main()
