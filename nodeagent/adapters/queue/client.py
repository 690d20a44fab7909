"""The queue controller over gRPC: the QueueLink port.

Each connection makes a new channel, so that renewed certificates are read and a controller that
moved is found. Every call has a timeout; the stream of decisions carries a keepalive each second,
so silence means that the connection is broken even if TCP does not notice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.queue.wire import (
    read_decision,
    read_status,
    read_welcome,
    write_capacity,
    write_detection,
    write_held,
    write_outcome,
    write_pod_usage,
    write_submission,
    write_usage,
)
from nodeagent.ports.queue import (
    OVER,
    Capacity,
    Decision,
    Detection,
    Fence,
    LinkLost,
    NotOffered,
    PodUsage,
    QueueRefused,
    QueueStatus,
    Submission,
    Usage,
    Welcome,
    Work,
    WorkState,
)
from nodeagent.settings.daemon import QueueSettings

NODES: Final = "sluice.v1.QueueNodes"
QUEUES: Final = "sluice.v1.Queues"
DEADLINE_S: Final = 5.0
CONNECT_DEADLINE_S: Final = 10.0
"""Seconds; the call reports everything that the node holds, and the controller answers with all its
decisions."""
SILENCE_S: Final = 10.0
CALLS_AT_ONCE: Final = 16
"""Concurrent calls for processes that wait here. The controller accepts 64 pending calls per caller
and pauses reading after more; reports and confirmations need some of them."""
RELEASE: Final = f"/{NODES}/Release"
LARGEST_ANSWER: Final = 16 << 20

_GONE: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)


class GrpcQueueLink:
    def __init__(
        self, settings: QueueSettings, node: str, boot_id: str, version: str, wire: Wire
    ) -> None:
        self._settings = settings
        self._node = node
        self._boot_id = boot_id
        self._version = version
        self._wire = wire
        self._channel: Any = None
        self._tells_many = True
        """False once this controller has reported that it does not accept several reports in one
        call."""
        self._few = asyncio.Semaphore(CALLS_AT_ONCE)
        self._methods = {
            **{f"/{NODES}/{n}": m for n, m in wire.methods(NODES).items()},
            **{f"/{QUEUES}/{n}": m for n, m in wire.methods(QUEUES).items()},
        }

    # --- sessions -----------------------------------------------------------------------------

    async def connect(
        self, fence: Fence, held: Sequence[Work], waiting: Sequence[str], capacity: Capacity
    ) -> Welcome:
        await self.close()
        self._channel = self._open()
        self._tells_many = True
        hello = self._wire.message("NodeHello")(
            node=self._node,
            boot_id=self._boot_id,
            version=self._version,
            cluster_id=fence.cluster_id,
            seen_term=fence.term,
            seen_revision=fence.revision,
            epoch=fence.epoch,
            held=[write_held(self._wire, work) for work in held],
            waiting=list(waiting),
            capacity=write_capacity(self._wire, capacity),
            proof=fence.proof,
        )
        answer = await self._call(f"/{NODES}/Connect", hello, CONNECT_DEADLINE_S)
        return read_welcome(answer)

    def _open(self) -> Any:
        settings = self._settings
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", LARGEST_ANSWER),
            ("grpc.keepalive_time_ms", 20_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.initial_reconnect_backoff_ms", 200),
            ("grpc.max_reconnect_backoff_ms", 2_000),
        ]
        if settings.server.startswith("unix:"):
            options.append(("grpc.enable_http_proxy", 0))
            return grpc.aio.insecure_channel(settings.server, options=options)
        try:
            credentials = grpc.ssl_channel_credentials(
                Path(settings.ca).read_bytes(),
                Path(settings.key).read_bytes() if settings.key else None,
                Path(settings.certificate).read_bytes() if settings.certificate else None,
            )
        except OSError as error:
            raise LinkLost(f"{error.filename}: {error.strerror}") from error
        if settings.server_name:
            options.append(("grpc.ssl_target_name_override", settings.server_name))
        return grpc.aio.secure_channel(settings.server, credentials, options=options)

    async def report(
        self,
        fence: Fence,
        sequence: int,
        capacity: Capacity,
        usage: Sequence[Usage | PodUsage],
        detections: Sequence[Detection],
        *,
        stopping: bool = False,
    ) -> Welcome:
        message = self._wire.message("NodeReport")(
            node=self._node,
            epoch=fence.epoch,
            term=fence.term,
            sequence=sequence,
            capacity=write_capacity(self._wire, capacity),
            usage=[write_usage(self._wire, one) for one in usage if isinstance(one, Usage)],
            pod_usage=[
                write_pod_usage(self._wire, one) for one in usage if isinstance(one, PodUsage)
            ],
            detections=[write_detection(self._wire, one) for one in detections],
            stopping=stopping,
        )
        ack = await self._call(f"/{NODES}/Report", message)
        return Welcome(
            fence.cluster_id,
            ack.term,
            ack.epoch,
            ack.revision,
            ack.lease_seconds,
            0.0,
            proof=ack.proof,
        )

    async def watch(self, fence: Fence) -> AsyncIterator[tuple[int, int, Decision | None, str]]:
        request = self._wire.message("WatchDecisionsRequest")(
            node=self._node,
            epoch=fence.epoch,
            term=fence.term,
            after_revision=fence.revision,
            batches=True,
        )
        async for update in self._stream(f"/{NODES}/WatchDecisions", request, SILENCE_S):
            found = [read_decision(one) for one in update.decisions]
            if update.HasField("decision"):  # An earlier controller sends one at a time.
                found = [read_decision(update.decision)]
            for one in found[:-1]:
                yield update.term, one.revision, one, ""  # The proof is for the last one.
            yield update.term, update.revision, found[-1] if found else None, update.proof

    async def report_works(self, fence: Fence, works: Sequence[Work]) -> list[bool]:
        if self._tells_many:
            item = self._wire.message("NewsItem")
            news = self._wire.message("NodeNews")(
                node=self._node,
                epoch=fence.epoch,
                term=fence.term,
                items=[
                    item(release=message) if path == RELEASE else item(confirmation=message)
                    for path, message in (self._news(fence, work) for work in works)
                ],
            )
            try:
                ack = await self._call(f"/{NODES}/Tell", news)
            except QueueRefused as refused:
                if refused.kind != "UNIMPLEMENTED":
                    raise
                self._tells_many = False
            else:
                return [bool(one) for one in ack.known]
        return [
            bool((await self._call(path, message)).known)
            for path, message in (self._news(fence, work) for work in works)
        ]

    def _news(self, fence: Fence, work: Work) -> tuple[str, Any]:
        """One report as its call and its message."""
        decision = work.decision
        about = {
            "node": self._node,
            "epoch": fence.epoch,
            "term": fence.term,
            "workload": decision.workload,
            "pod": decision.pod,
            "uid": decision.uid,
            "attempt": decision.attempt,
            "reason": work.reason,
        }
        if work.state in OVER and work.state is not WorkState.REFUSED:
            notice = self._wire.message("ReleaseNotice")(
                **about, finished=work.state is WorkState.FINISHED, started=work.started
            )
            return RELEASE, notice
        return f"/{NODES}/Confirm", write_outcome(self._wire, about, work)

    # --- for processes that wait here ---------------------------------------------------------

    async def submit(self, ask: Submission) -> QueueStatus:
        message = write_submission(self._wire, ask, self._node)
        async with self._few:
            return read_status(await self._call(f"/{QUEUES}/Submit", message))

    async def follow_waiting(
        self, fence: Fence, workloads: Sequence[str]
    ) -> AsyncIterator[list[QueueStatus]]:
        request = self._wire.message("FollowWaitingRequest")(
            node=self._node, epoch=fence.epoch, workloads=workloads
        )
        try:
            async for update in self._stream(f"/{NODES}/FollowWaiting", request, SILENCE_S):
                yield [read_status(one) for one in update.statuses]
        except QueueRefused as refused:
            if refused.kind == "UNIMPLEMENTED":
                raise NotOffered(str(refused)) from None
            raise

    async def follow(self, workload: str, uid: str) -> AsyncIterator[QueueStatus]:
        async for status in self._stream(f"/{QUEUES}/Follow", self._ref(workload, uid), None):
            yield read_status(status)

    async def withdraw(self, workload: str, uid: str) -> None:
        try:
            async with self._few:
                await self._call(f"/{QUEUES}/Delete", self._ref(workload, uid))
        except QueueRefused as refused:
            if refused.kind != "NOT_FOUND":
                raise

    def _ref(self, workload: str, uid: str) -> Any:
        namespace, _, name = workload.partition("/")
        return self._wire.message("ObjectRef")(
            kind="Workload", namespace=namespace, name=name, uid=uid
        )

    # --- calls --------------------------------------------------------------------------------

    async def _call(self, path: str, request: Any, deadline_s: float = DEADLINE_S) -> Any:
        if self._channel is None:
            raise LinkLost("not connected")
        request_type, answer_type, _ = self._methods[path]
        call = self._channel.unary_unary(
            path,
            request_serializer=request_type.SerializeToString,
            response_deserializer=answer_type.FromString,
        )
        with self._errors():
            return await call(request, timeout=deadline_s, metadata=self._metadata())

    async def _stream(self, path: str, request: Any, silence_s: float | None) -> AsyncIterator[Any]:
        if self._channel is None:
            raise LinkLost("not connected")
        request_type, answer_type, _ = self._methods[path]
        call = self._channel.unary_stream(
            path,
            request_serializer=request_type.SerializeToString,
            response_deserializer=answer_type.FromString,
        )(request, metadata=self._metadata())
        try:
            while True:
                with self._errors():
                    # Not wait_for: before Python 3.12 it may swallow a cancellation.
                    async with asyncio.timeout(silence_s):
                        message = await call.read()
                if message is grpc.aio.EOF:
                    return
                yield message
        finally:
            call.cancel()

    def _metadata(self) -> list[tuple[str, str]]:
        """The metadata of a call. Raises LinkLost."""
        path = self._settings.token
        if not path:
            return []
        try:
            token = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise LinkLost(f"queue.token: {path}: {error}") from error
        return [("authorization", f"Bearer {token}")]

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            # Either this task was cancelled, or only the call, because its channel was closed for
            # the next session.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise LinkLost(f"{self._settings.server}: the session has ended") from None
        except TimeoutError:
            raise LinkLost(f"{self._settings.server} is silent") from None
        except grpc.aio.UsageError as error:  # The channel was closed.
            raise LinkLost(str(error)) from None
        except grpc.RpcError as error:
            code, details = error.code(), error.details()
            if code in _GONE:
                raise LinkLost(f"{self._settings.server}: {details}") from None
            raise QueueRefused(code.name, details or code.name) from None

    async def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()
