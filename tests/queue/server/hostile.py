"""Hostile peers of the queue controller, all of one kind, until their standard input closes.

usage: python -m tests.queue.server.hostile KIND HOST:PORT CA KEY CERTIFICATE…   (one peer for each certificate)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import sys
from pathlib import Path
from typing import Any

import grpc

from queuecontroller.server.api.wire import NODES, QUEUES, Wire, find_descriptors

WIRE = Wire(find_descriptors())
SILENT_EACH = 40
"""Connections of a silent peer, made again as soon as they are closed."""
CALLS_AT_ONCE = 200
"""Concurrent calls of a flooding peer."""


async def silent(address: str, stop: asyncio.Event) -> None:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()

    async def one() -> None:
        while not stop.is_set():
            with contextlib.suppress(OSError), socket.socket() as peer:
                peer.setblocking(False)
                await loop.sock_connect(peer, (host, int(port)))
                await loop.sock_recv(peer, 1)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(SILENT_EACH)))


async def flooding(channel: Any, stop: asyncio.Event, name: str) -> None:
    requests = [
        (f"/{QUEUES}/List", WIRE.ListRequest(kind="Workload").SerializeToString()),
        (f"/{QUEUES}/Watch", WIRE.ListRequest(kind="Workload").SerializeToString()),
        (f"/{QUEUES}/Nonsense", b"x" * 1000),
        (f"/{QUEUES}/Apply", b"\xff" * 100_000),
    ]

    async def one(number: int) -> None:
        path, raw = requests[number % len(requests)]
        call = channel.unary_stream(path)
        while not stop.is_set():
            with contextlib.suppress(grpc.RpcError, asyncio.CancelledError):
                await call(raw, timeout=30).read()
            await asyncio.sleep(0)

    await asyncio.gather(*(one(number) for number in range(CALLS_AT_ONCE)))


async def lying_node(channel: Any, stop: asyncio.Event, name: str) -> None:
    rng = random.Random(name)
    connect = channel.unary_unary(f"/{NODES}/Connect")
    while not stop.is_set():
        hello = WIRE.NodeHello(
            node=rng.choice((name, "honest", "n" * 300)),
            seen_term=rng.choice((0, 2, 2**63 - 1, 2**64 - 1)),
            seen_revision=rng.choice((0, 2**60)),
            epoch=rng.choice((0, 2**60)),
            proof="s1.00.{}",
            capacity={"gpus": [{"uuid": f"GPU-{rng.randrange(4)}", "memory_bytes": 80 << 30}]},
        )
        with contextlib.suppress(grpc.RpcError):
            await connect(hello.SerializeToString(), timeout=30)


async def lying_user(channel: Any, stop: asyncio.Event, name: str) -> None:
    rng = random.Random(name)
    while not stop.is_set():
        document = {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": rng.choice(("Workload", "ClusterQueue")),
            "metadata": {"name": rng.choice(("honest-1", "a", "j\nX")), "namespace": "team-a"},
            "spec": {"priority": 2_000_000_000, "active": False, "queueName": "q"},
            "status": {"admissionChecks": [{"name": "budget", "state": "Ready"}]},
        }
        requests = (
            ("Apply", WIRE.ApplyRequest(objects=[json.dumps(document)] * 100)),
            ("Delete", WIRE.ObjectRef(kind="Workload", namespace="team-a", name="honest-1")),
            ("Submit", WIRE.SubmitRequest(queue="q", namespace="team-a", node="n1", user="ann")),
            ("List", WIRE.ListRequest(kind="Workload", after="[[[[")),
        )
        path, request = rng.choice(requests)
        with contextlib.suppress(grpc.RpcError):
            await channel.unary_unary(f"/{QUEUES}/{path}")(request.SerializeToString(), timeout=30)


async def main(kind: str, address: str, ca: str, key: str, *certificates: str) -> None:
    stop = asyncio.Event()
    parts = []
    for number, certificate in enumerate(certificates):
        if kind == "silent":
            parts.append(silent(address, stop))
            continue
        credentials = grpc.ssl_channel_credentials(
            Path(ca).read_bytes(), Path(key).read_bytes(), Path(certificate).read_bytes()
        )
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.secure_channel(address, credentials, options=options)
        act = {"flooding": flooding, "lying_node": lying_node, "lying_user": lying_user}[kind]
        parts.append(act(channel, stop, f"liar-{number}"))
    tasks = [asyncio.create_task(part) for part in parts]
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    stop.set()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(main(*sys.argv[1:]))
