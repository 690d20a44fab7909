"""The service for nodes. A caller speaks for the node that it is, and for no other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from queuecontroller.access import Act, Caller, Target, check
from queuecontroller.records import Assignment, PodState
from queuecontroller.service.shell import Shell

from .calls import Calls
from .messages import (
    node_name,
    read_capacity,
    read_hello,
    read_said,
    read_shares,
    read_state,
    read_usage,
    write_decision,
)
from .wire import NODES, Wire


class NodesApi:
    def __init__(self, shell: Shell, wire: Wire, calls: Calls, report_s: float) -> None:
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
            },
            {"WatchDecisions": self._watch},
        )

    def _identify(self, request: Any, caller: Caller) -> None:
        """Raises Refused, Denied."""
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
        )

    def _report(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        capacity, usage = read_capacity(request.capacity), read_usage(request.usage)
        node = self._shell.step(
            "report",
            lambda book, now_ns: book.desk.report(
                request.node, request.epoch, request.sequence, capacity, now_ns
            ),
        )
        mine = {one.workload for one in self._shell.book.nodes.of_node(node.name)}
        node.usage = {key: found for key, found in usage.items() if key[0] in mine}
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
        said, state = read_said(request), read_state(request)
        gpus = read_shares(request.gpus)

        if state is None:
            known = self._shell.step("refuse", lambda book, now: book.desk.refuse(said, now))
        elif request.refused:
            known = self._shell.step("refuse", lambda book, now: book.desk.refuse_resume(said, now))
        else:
            live: PodState = state
            known = self._shell.step(
                "confirm", lambda book, now: book.desk.confirm(said, live, gpus, now)
            )
        return self._ack(known)

    def _release(self, request: Any, caller: Caller) -> Any:
        self._identify(request, caller)
        said = read_said(request)
        finished = request.finished
        known = self._shell.step(
            "release", lambda book, now: book.desk.release(said, finished, now)
        )
        return self._ack(known)

    def _ack(self, known: bool) -> Any:
        journal = self._shell.book.journal
        return self._wire.ConfirmAck(term=journal.term, revision=journal.revision, known=known)

    async def _watch(self, request: Any, caller: Caller) -> AsyncGenerator[Any, None]:
        self._identify(request, caller)
        book = self._shell.book
        journal = book.journal
        news = self._shell.decisions(request.node, request.epoch, request.after_revision)
        async for one in news:
            update = self._wire.DecisionUpdate(term=journal.term, revision=journal.revision)
            if one is not None:
                update.revision = one.revision
                update.decision.CopyFrom(self._decision(one))
            update.proof = book.nodes.fence(request.node, update.revision)
            yield update
