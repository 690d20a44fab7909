"""Clients and nodes of a queue controller, as light as they can be: their own cost is not what is measured.

`python -m tests.bench.queueing.queue_load KIND TARGET …` prints one JSON object. Everything goes over one Unix socket or one TCP
address, each client and each node with a connection of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil

from queuecontroller.server.api.wire import NODES, QUEUES, Wire, find_descriptors

WIRE = Wire(find_descriptors())
GIB = 1 << 30


def channel(target: str, credentials: Any = None) -> Any:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, credentials, options=options)


def certified(directory: Path, name: str) -> Any:
    """TLS credentials from the files that `tests.bench.queueing.service` wrote."""
    return grpc.ssl_channel_credentials(
        (directory / "ca.pem").read_bytes(),
        (directory / "nodes.key").read_bytes(),
        (directory / f"{name}.pem").read_bytes(),
    )


def submission(number: int, queue: str = "q", node: str = "") -> bytes:
    ask = WIRE.GpuAsk(gpus=1, memory_bytes=GIB, share_ppm=10_000)
    raw: bytes = WIRE.SubmitRequest(
        namespace="team-a",
        queue=queue,
        node=node,
        ask=ask,
        command="python train.py --epochs 20",
        token=f"{os.getpid()}-{number}",
    ).SerializeToString()
    return raw


class Spent:
    """CPU time since it was made, of this process and of the controller's. Other work on the machine changes it far less
    than it changes rates."""

    def __init__(self, controller: int) -> None:
        """0: there is none."""
        self._controller = psutil.Process(controller) if controller else None
        self._before = self._now()

    def _now(self) -> list[float]:
        found = [time.process_time()]
        if self._controller is not None:
            times = self._controller.cpu_times()
            found.append(times.user + times.system)
        return found

    def each(self, count: int) -> dict[str, float]:
        names = ("load_cpu_ms", "controller_cpu_ms")
        both = zip(names, self._before, self._now(), strict=False)
        return {name: round(1e3 * (now - before) / count, 3) for name, before, now in both}


async def submit(target: str, clients: int, seconds: float, controller: int) -> dict[str, Any]:
    """As many calls as it takes, each client one at a time; the first fifth of the time counts for nothing."""
    took: list[float] = []
    numbers = itertools.count()
    begin = time.perf_counter() + seconds / 5
    end = begin + seconds

    async def one() -> None:
        async with channel(target) as made:
            call = made.unary_unary(f"/{QUEUES}/Submit")
            while True:
                at = time.perf_counter()
                if at >= end:
                    return
                await call(submission(next(numbers)), timeout=60)
                if at >= begin:
                    took.append(time.perf_counter() - at)

    spent = Spent(controller)
    await asyncio.gather(*(one() for _ in range(clients)))
    return {"per_s": len(took) / seconds, **spent.each(next(numbers)), **spread(took)}


class Node:
    """Obeys at once: what it is told to run, runs, and is over as soon as that is known."""

    def __init__(self, target: str, credentials: Any, name: str, gpus: int) -> None:
        self.name = name
        self.gpus = gpus
        self.channel = channel(target, credentials)
        self.epoch = 0
        self.ran: dict[str, float] = {}
        """When each was told to run."""
        self.over = 0
        self._outbox: list[Any] = []
        self._news = asyncio.Event()
        self._waiting: dict[str, int] = {}
        """Places of those that wait here, as told."""
        self.told = 0

    def call(self, name: str) -> Any:
        method = WIRE.methods(NODES)[name]
        make = self.channel.unary_stream if method.streams else self.channel.unary_unary
        return make(
            f"/{NODES}/{name}",
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )

    def capacity(self) -> Any:
        gpus = [
            WIRE.NodeGpu(
                uuid=f"GPU-{self.name}-{i}",
                index=i,
                type="H100",
                memory_bytes=80 * GIB,
                share_ppm=1_000_000,
                slots=100,
                health="healthy",
            )
            for i in range(self.gpus)
        ]
        return WIRE.NodeCapacity(gpus=gpus)

    async def run(self, ready: asyncio.Event, follows: bool) -> None:
        hello = WIRE.NodeHello(node=self.name, boot_id="b", capacity=self.capacity())
        welcome = await self.call("Connect")(hello, timeout=60)
        self.epoch = welcome.epoch
        parts = [self._obey(welcome), self._tell(), self._report(welcome.report_seconds)]
        if follows:
            parts.append(self._follow())
        ready.set()
        await asyncio.gather(*parts)

    async def _obey(self, welcome: Any) -> None:
        request = WIRE.WatchDecisionsRequest(
            node=self.name, epoch=self.epoch, after_revision=welcome.revision, batches=True
        )
        async for update in self.call("WatchDecisions")(request):
            at = time.perf_counter()
            for one in update.decisions:
                if one.desired != 1:
                    continue
                self.ran[one.workload] = at
                about = {"workload": one.workload, "uid": one.uid, "attempt": one.attempt}
                self._outbox += [
                    WIRE.NewsItem(confirmation=WIRE.Confirmation(state=2, **about)),
                    WIRE.NewsItem(release=WIRE.ReleaseNotice(finished=True, started=True, **about)),
                ]
                self._news.set()

    async def _tell(self) -> None:
        tell = self.call("Tell")
        while True:
            await self._news.wait()
            self._news.clear()
            items, self._outbox = self._outbox[:1000], self._outbox[1000:]
            await tell(WIRE.NodeNews(node=self.name, epoch=self.epoch, items=items), timeout=60)
            self.over += len(items) // 2
            if self._outbox:
                self._news.set()

    async def _report(self, every_s: float) -> None:
        report, sequence, capacity = self.call("Report"), 0, self.capacity()
        while True:
            await asyncio.sleep(every_s)
            sequence += 1
            await report(
                WIRE.NodeReport(
                    node=self.name, epoch=self.epoch, sequence=sequence, capacity=capacity
                ),
                timeout=60,
            )

    async def _follow(self) -> None:
        request = WIRE.FollowWaitingRequest(node=self.name, epoch=self.epoch)
        async for update in self.call("FollowWaiting")(request):
            self.told += len(update.statuses)
            for one in update.statuses:
                self._waiting[one.workload] = one.position

    @property
    def waiting(self) -> int:
        return len(self._waiting)


async def jobs(target: str, options: argparse.Namespace) -> dict[str, Any]:
    """Jobs from submission until they ran and are over, on nodes that obey at once. With `--per-s` as many as that and
    no more; else each client one submission at a time, as fast as it goes, while fewer than `--open` are on their way."""
    names = [f"n{i}" for i in range(options.nodes)]
    nodes = [Node(options.tls, certified(options.pki, name), name, 8) for name in names]
    ready = [asyncio.Event() for _ in nodes]
    tasks = [
        asyncio.create_task(node.run(event, options.followers > 0))
        for node, event in zip(nodes, ready, strict=True)
    ]
    failed: asyncio.Future[Any] = asyncio.gather(*tasks)
    await asyncio.gather(*(event.wait() for event in ready))
    read = WIRE.methods(QUEUES)["Submit"].response.FromString
    channels = [channel(target) for _ in range(options.clients)]
    calls = [one.unary_unary(f"/{QUEUES}/Submit", response_deserializer=read) for one in channels]
    if options.followers:
        raws = iter(
            [submission(i, "waits", nodes[i % len(nodes)].name) for i in range(options.followers)]
        )

        async def wait(call: Any) -> None:
            for raw in raws:
                await call(raw, timeout=60)

        await asyncio.gather(*(wait(call) for call in calls))
        while sum(node.waiting for node in nodes) < options.followers:
            await asyncio.sleep(0.1)
    asked: dict[str, float] = {}
    spent = Spent(options.controller)
    numbers, turns = itertools.count(1 << 30), itertools.count()
    start = time.perf_counter()
    begin, end = start + options.seconds / 5, start + 1.2 * options.seconds

    def over() -> int:
        return sum(node.over for node in nodes)

    async def one(call: Any, number: int) -> None:
        while (at := time.perf_counter()) < end:
            if options.per_s:
                turn = next(turns)
                at = start + turn / options.per_s  # late is late: from when it should have been
                await asyncio.sleep(max(0.0, at - time.perf_counter()))
            elif len(asked) - over() > options.open:
                await asyncio.sleep(0.005)
                continue
            status = await call(submission(next(numbers)), timeout=60)
            asked[status.workload] = at

    over_at: dict[float, int] = {}

    async def count() -> None:
        for at in (begin, end):
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            over_at[at] = over()

    async def everybody() -> None:
        await asyncio.gather(count(), *(one(call, i) for i, call in enumerate(calls)))

    told = sum(node.told for node in nodes)
    working = asyncio.create_task(everybody())
    await asyncio.wait([working, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        failed.result()
    working.result()
    await asyncio.sleep(0.5)
    told = sum(node.told for node in nodes) - told
    each = spent.each(over())
    failed.cancel()
    await asyncio.gather(failed, *tasks, return_exceptions=True)
    ran = {key: at for node in nodes for key, at in node.ran.items()}
    took = [ran[key] - at for key, at in asked.items() if key in ran and begin <= at]
    for one_ in (*channels, *(node.channel for node in nodes)):
        await one_.close()
    per_s = (over_at[end] - over_at[begin]) / (end - begin)
    return {"per_s": per_s, "jobs": len(took), "told": told, **each, **spread(took)}


def spread(took: list[float]) -> dict[str, Any]:
    ordered = sorted(took) or [0.0]
    return {
        f"{name}_ms": round(1e3 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 2)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("worst", 1.0))
    }


async def echo(path: str, answer: bytes) -> None:
    """A bare gRPC server that does nothing: answers every call with the same bytes."""

    async def say(raw: bytes, context: Any) -> bytes:
        return answer

    class Any_(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(say)

    server = grpc.aio.server(handlers=[Any_()])
    server.add_insecure_port(path)
    await server.start()
    print("ready", flush=True)
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["submit", "echo", "jobs"])
    parser.add_argument("target")
    parser.add_argument("--controller", type=int, default=0, help="its process")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--tls", default="")
    parser.add_argument("--pki", type=Path)
    parser.add_argument("--followers", type=int, default=0)
    parser.add_argument("--per-s", type=float, default=0.0)
    parser.add_argument("--open", type=int, default=400)
    options = parser.parse_args()
    kinds: dict[str, Callable[[], Awaitable[Any]]] = {
        "submit": lambda: submit(
            options.target, options.clients, options.seconds, options.controller
        ),
        "jobs": lambda: jobs(options.target, options),
        "echo": lambda: echo(
            options.target,
            WIRE.WorkloadStatus(workload="team-a/run-0123456789ab").SerializeToString(),
        ),
    }

    async def run() -> None:
        print(json.dumps(await kinds[options.kind]()), flush=True)

    asyncio.run(run())


if __name__ == "__main__":
    main()
