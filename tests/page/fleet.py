"""Any number of nodes on the real wire, in one thread: they report GPUs, start what the queue decides, and say how busy each GPU is."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc

from queuecontroller.server.api.wire import NODES, Wire, find_descriptors
from tests.kit.node import PATIENCE
from tests.queue.server.certificates import Authority

WIRE = Wire(find_descriptors())
GIB = 1 << 30
HELD_RUNNING, DESIRED_STOP = 2, 3
NOTEBOOK_BYTES, NOTEBOOK_PPM = 10 * GIB, 200_000
"""The share of one pod on each node's last GPU that the queue did not start."""
TRANSIENT = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNAVAILABLE,
}

Channels = Callable[[str], grpc.aio.Channel]
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


def by_socket(socket: Path) -> Channels:
    """All of them are root: no more than 64, since that is who may have so many streams."""
    return lambda name: grpc.aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


def by_certificate(address: str, authority: Authority, names: Sequence[str]) -> Channels:
    """Each is who its certificate says, as in a cluster of machines."""
    pair = authority.issue("nodes", "DNS:nodes")
    alternatives = {name: f"DNS:{name},URI:sluice:node:{name}" for name in names}
    pairs = authority.sign_many(pair, alternatives)

    def channel(name: str) -> grpc.aio.Channel:
        credentials = grpc.ssl_channel_credentials(
            authority.ca.read_bytes(), pair.key.read_bytes(), pairs[name].certificate.read_bytes()
        )
        return grpc.aio.secure_channel(address, credentials, options=OPTIONS)

    return channel


class Fleet:
    """`gpus` on each of the nodes; a report of each every `report_s`; `channel`: the connection of one, by its name."""

    def __init__(
        self, channel: Channels, names: Sequence[str], gpus: int = 8, report_s: float = 2.0
    ) -> None:
        self._channel = channel
        self._names = names
        self._gpus = gpus
        self._report_s = report_s
        self._stop = threading.Event()
        self.all_here = threading.Event()
        self.sick: set[str] = set()
        """UUIDs of GPUs that are not well."""
        self.failures: list[BaseException] = []
        self.repeated = 0
        """Reports that had no answer: the next one follows, as the daemon does it."""
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Fleet:
        self._thread.start()
        assert self.all_here.wait(240 * PATIENCE)
        assert self.failures == []
        return self

    def __exit__(self, *what: object) -> None:
        self._stop.set()
        self._thread.join(60 * PATIENCE)

    def _run(self) -> None:
        try:
            asyncio.run(self._nodes())
        except BaseException as error:
            self.failures.append(error)
            self.all_here.set()  # Nobody waits for those that cannot come any more.
            raise

    async def _nodes(self) -> None:
        here = asyncio.Semaphore(8)
        connected: list[str] = []

        async def node(number: int, name: str) -> None:
            # A connection each, as nodes have: the controller bounds what one may ask at a time.
            async with self._channel(name) as channel:
                async with here:
                    hello = WIRE.NodeHello(
                        node=name, boot_id="b", version="1.0", capacity=self._capacity(number, name)
                    )
                    welcome = await self._connect(channel, hello)
                connected.append(name)
                if len(connected) == len(self._names):
                    self.all_here.set()
                obeying = asyncio.create_task(self._obey(channel, name, welcome))
                sequence = 0
                while not self._stop.is_set():
                    sequence += 1
                    report = WIRE.NodeReport(
                        node=name,
                        epoch=welcome.epoch,
                        term=welcome.term,
                        sequence=sequence,
                        capacity=self._capacity(number, name, sequence),
                        pod_usage=[
                            WIRE.PodUsage(
                                uid=f"uid-{name}",
                                memory_bytes=GIB * (1 + number % 9),
                                used_ratio=number % 5 / 25,
                            )
                        ],
                    )
                    try:
                        await self._call(channel, "Report")(report, timeout=60)
                    except grpc.aio.AioRpcError as error:
                        if error.code() not in TRANSIENT:
                            raise
                        self.repeated += 1
                    await asyncio.sleep(self._report_s)
                obeying.cancel()
                await asyncio.gather(obeying, return_exceptions=True)

        await asyncio.gather(*(node(n, name) for n, name in enumerate(self._names)))

    async def _connect(self, channel: Any, hello: Any) -> Any:
        """As often as it takes, like the daemon: a busy machine comes to the first call of a connection after its server has closed it."""
        for _ in range(20):
            try:
                return await self._call(channel, "Connect")(hello, timeout=60)
            except grpc.aio.AioRpcError as error:
                if error.code() not in TRANSIENT:
                    raise
                self.repeated += 1
                await asyncio.sleep(1)
        raise TimeoutError(f"{hello.node} has no session after 20 tries")

    def _call(self, channel: Any, name: str) -> Any:
        kind = WIRE.methods(NODES)[name]
        make = channel.unary_stream if kind.streams else channel.unary_unary
        return make(
            f"/{NODES}/{name}",
            request_serializer=kind.request.SerializeToString,
            response_deserializer=kind.response.FromString,
        )

    async def _obey(self, channel: Any, name: str, welcome: Any) -> None:
        request = WIRE.WatchDecisionsRequest(
            node=name, epoch=welcome.epoch, term=welcome.term, batches=True
        )
        async for update in self._call(channel, "WatchDecisions")(request):
            items = []
            for one in update.decisions:
                about = {
                    "workload": one.workload,
                    "uid": one.uid,
                    "attempt": one.attempt,
                    "pod": one.pod,
                }
                if one.desired == DESIRED_STOP:
                    items.append(WIRE.NewsItem(release=WIRE.ReleaseNotice(**about, started=True)))
                else:
                    items.append(
                        WIRE.NewsItem(
                            confirmation=WIRE.Confirmation(
                                **about, state=HELD_RUNNING, gpus=one.gpus
                            )
                        )
                    )
            if items:
                news = WIRE.NodeNews(node=name, epoch=welcome.epoch, term=welcome.term, items=items)
                await self._call(channel, "Tell")(news, timeout=60)

    def _capacity(self, number: int, name: str, beat: int = 0) -> Any:
        def gpu(index: int) -> Any:
            uuid = f"GPU-{name}-{index}"
            load = 0.5 + 0.45 * math.sin(number + index + beat / 3)
            return WIRE.NodeGpu(
                uuid=uuid,
                index=index,
                type="NVIDIA H100 80GB",
                memory_bytes=80 * GIB,
                share_ppm=1_000_000,
                slots=10,
                health="lost" if uuid in self.sick else "healthy",
                used_memory_bytes=int(load * 60 * GIB),
                utilization_ratio=round(load, 3),
                outside_memory_bytes=NOTEBOOK_BYTES if index == self._gpus - 1 else 0,
                outside_share_ppm=NOTEBOOK_PPM if index == self._gpus - 1 else 0,
                outside_slots=int(index == self._gpus - 1),
            )

        notebook = WIRE.PodShare(
            uuid=f"GPU-{name}-{self._gpus - 1}",
            memory_bytes=NOTEBOOK_BYTES,
            share_ppm=NOTEBOOK_PPM,
        )

        return WIRE.NodeCapacity(
            gpus=[gpu(index) for index in range(self._gpus)],
            labels={
                "kubernetes.io/hostname": name,
                "topology/block": f"block-{number // 10}",
                "topology/rack": f"rack-{number // 5}",
            },
            pods=[
                WIRE.PodGpus(
                    namespace="notebooks",
                    pod=f"jupyter-{number}",
                    uid=f"uid-{name}",
                    shares=[notebook],
                )
            ],
        )
