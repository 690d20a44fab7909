"""The gRPC service for nodes. A caller may act only for its own node."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any, Final

from queuecontroller.server.api.calls import Calls, Deciding
from queuecontroller.server.api.messages import (
    few,
    node_name,
    read_capacity,
    read_detections,
    read_hello,
    read_key,
    read_pod_usage,
    read_shares,
    read_state,
    read_usage,
    read_work_report,
    write_decision,
    write_status,
)
from queuecontroller.server.api.wire import NODES, Wire
from queuecontroller.state.access import Act, Caller, Target, check
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import Assignment

MAX_NEWS: Final = 1000
"""Items in one message of a node; each takes time in the event loop that serves all callers."""


class NodesApi:
    def __init__(self, shell: Deciding, wire: Wire, calls: Calls, report_s: float) -> None:
        self._shell = shell
        self._wire = wire
        self._calls = calls
        self._report_s = report_s

    def handler(self) -> Any:
        return self._calls.handlers(
            self._wire,
            NODES,
            {
                "Connect": self._connect,
                "Report": self._report,
                "Confirm": self._confirm,
                "Release": self._release,
                "Tell": self._tell,
            },
            {"WatchDecisions": self._watch, "FollowWaiting": self._follow_waiting},
        )

    def _identify(self, request: Any, caller: Caller) -> None:
        """Check that the caller is the node in the request. Raises Refused, Denied."""
        name = node_name(request.node)
        check(caller, Act.SESSION, Target(nodes=frozenset({name})), f"node {name}")

    def _connect(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        hello = read_hello(request)
        node, decisions = self._shell.step(
            "connect", lambda book, now_ns: book.desk.connect(hello, now_ns)
        )
        journal = self._shell.book.journal
        return self._wire.NodeWelcome(
            cluster_id=journal.cluster_id,
            term=journal.term,
            epoch=node.record.epoch,
            revision=journal.revision,
            lease_seconds=self._shell.book.settings.lease_s,
            report_seconds=self._report_s,
            decisions=[self._decision(one) for one in decisions],
            proof=self._shell.book.nodes.fence(hello.node, journal.revision),
        )

    def _decision(self, one: Assignment) -> Any:
        book = self._shell.book
        return write_decision(
            self._wire,
            one,
            book.desk.row_of(one),
            book.settings.grace_s,
            book.settings.requeue_lost,
            book.nodes.nodes_of(one.workload),
        )

    def _report(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        capacity, usage = read_capacity(request.capacity), read_usage(request.usage)
        pod_usage, detections = (
            read_pod_usage(request.pod_usage),
            read_detections(request.detections),
        )
        node = self._shell.step(
            "report",
            lambda book, now_ns: book.desk.report(
                request.node,
                request.epoch,
                request.sequence,
                capacity,
                now_ns,
                stopping=request.stopping,
            ),
        )
        mine = {one.workload for one in self._shell.book.nodes.of_node(node.name)}
        node.usage = {key: found for key, found in usage.items() if key[0] in mine}
        node.pod_usage = pod_usage
        # A node may attribute detections only to its own workloads.
        node.record_detections(
            one if one.workload in mine else replace(one, workload=None) for one in detections
        )
        journal = self._shell.book.journal
        return self._wire.ReportAck(
            term=journal.term,
            epoch=node.record.epoch,
            revision=journal.revision,
            lease_seconds=self._shell.book.settings.lease_s,
            proof=self._shell.book.nodes.fence(node.name, journal.revision),
        )

    def _confirm(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        return self._ack(self._read_confirmation(request, request)())

    def _release(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        return self._ack(self._read_release(request, request)())

    def _tell(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        if len(request.items) > MAX_NEWS:
            raise Refused("invalid", f"items: more than {MAX_NEWS}: send several messages")
        # All items are read before any is carried out.
        steps = [self._read_news(request, item) for item in request.items]
        known = [step() for step in steps]
        journal = self._shell.book.journal
        return self._wire.NodeNewsAck(term=journal.term, revision=journal.revision, known=known)

    def _read_news(self, request: Any, item: Any) -> Callable[[], bool]:
        """The step of one item; it returns False for an unknown attempt. Raises Refused."""
        form = item.WhichOneof("about")
        if form == "confirmation":
            return self._read_confirmation(item.confirmation, request)
        if form == "release":
            return self._read_release(item.release, request)
        raise Refused("invalid", "items: each must be a confirmation or a release")

    def _read_confirmation(self, message: Any, sender: Any) -> Callable[[], bool]:
        """The step of a confirmation; it returns False for an unknown attempt. Raises Refused."""
        report, state = read_work_report(message, sender), read_state(message)
        gpus = read_shares(message.gpus)
        step = self._shell.step
        if state is None:
            return lambda: step("refuse", lambda book, now: book.desk.refuse(report, now))
        if message.refused:
            return lambda: step("refuse", lambda book, now: book.desk.refuse_resume(report, now))
        return lambda: step(
            "confirm", lambda book, now: book.desk.confirm(report, state, gpus, now)
        )

    def _read_release(self, message: Any, sender: Any) -> Callable[[], bool]:
        """The step of a release; it returns False for an unknown attempt. Raises Refused."""
        report, finished = read_work_report(message, sender), message.finished
        return lambda: self._shell.step(
            "release", lambda book, now: book.desk.release(report, finished, now)
        )

    def _ack(self, known: bool) -> Any:
        journal = self._shell.book.journal
        return self._wire.ConfirmAck(term=journal.term, revision=journal.revision, known=known)

    async def _watch(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        self._identify(request, caller)
        book = self._shell.book
        journal = book.journal
        news = self._shell.decisions(request.node, request.epoch, request.after_revision)
        async for found in news:
            # A node of the previous release accepts only one decision in an update.
            for part in [found] if request.batches or not found else [[one] for one in found]:
                update = self._wire.DecisionUpdate(term=journal.term, revision=journal.revision)
                if part:
                    update.revision = part[-1].revision
                if request.batches:
                    update.decisions.extend(self._decision(one) for one in part)
                elif part:
                    update.decision.CopyFrom(self._decision(part[0]))
                update.proof = book.nodes.fence(request.node, update.revision)
                yield update

    async def _follow_waiting(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        self._identify(request, caller)
        keys = [read_key(one) for one in few(request.workloads, "workloads")]
        news = self._shell.follow_waiting(request.node, request.epoch, keys)
        async with contextlib.aclosing(news):
            async for statuses in news:
                yield self._wire.WaitingUpdate(
                    statuses=[write_status(self._wire, one) for one in statuses]
                )
