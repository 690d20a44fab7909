"""The service for nodes. A caller speaks for the node its certificate names."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from queuecontroller.records import Assignment, PodState
from queuecontroller.service.shell import Shell

from .callers import Permissions
from .calls import handlers
from .messages import (
    read_capacity,
    read_hello,
    read_said,
    read_shares,
    read_state,
    write_decision,
)
from .wire import NODES, Wire


class NodesApi:
    def __init__(self, shell: Shell, wire: Wire, permissions: Permissions, report_s: float) -> None:
        self._shell = shell
        self._wire = wire
        self._permissions = permissions
        self._report_s = report_s

    def handler(self) -> Any:
        return handlers(
            self._wire,
            self._shell,
            NODES,
            {
                "Connect": self._connect,
                "Report": self._report,
                "Confirm": self._confirm,
                "Release": self._release,
            },
            {"WatchDecisions": self._watch},
        )

    def _identify(self, request: Any, context: Any) -> None:
        self._permissions.as_node(self._permissions.caller(context), request.node)

    def _connect(self, request: Any, context: Any) -> Any:
        self._identify(request, context)
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

    def _report(self, request: Any, context: Any) -> Any:
        self._identify(request, context)
        capacity = read_capacity(request.capacity)
        node = self._shell.step(
            "report",
            lambda book, now_ns: book.desk.report(
                request.node, request.epoch, request.sequence, capacity, now_ns
            ),
        )
        node.usage = {
            (one.workload, one.attempt): (
                one.memory_bytes,
                one.used_ratio if one.HasField("used_ratio") else None,
            )
            for one in request.usage[:10_000]
        }
        journal = self._shell.book.journal
        return self._wire.ReportAck(
            term=journal.term,
            epoch=node.record.epoch,
            revision=journal.revision,
            lease_seconds=self._shell.book.settings.lease_s,
        )

    def _confirm(self, request: Any, context: Any) -> Any:
        self._identify(request, context)
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

    def _release(self, request: Any, context: Any) -> Any:
        self._identify(request, context)
        said = read_said(request)
        finished = request.finished
        known = self._shell.step(
            "release", lambda book, now: book.desk.release(said, finished, now)
        )
        return self._ack(known)

    def _ack(self, known: bool) -> Any:
        journal = self._shell.book.journal
        return self._wire.ConfirmAck(term=journal.term, revision=journal.revision, known=known)

    async def _watch(self, request: Any, context: Any) -> AsyncGenerator[Any, None]:
        self._identify(request, context)
        journal = self._shell.book.journal
        news = self._shell.decisions(request.node, request.epoch, request.after_revision)
        async for one in news:
            update = self._wire.DecisionUpdate(term=journal.term, revision=journal.revision)
            if one is not None:
                update.revision = one.revision
                update.decision.CopyFrom(self._decision(one))
            yield update
