"""The local API: callers create grants, see their own, and root sees all. Implements the
NodeService port; the kernel gives the identity of each peer.

Implements the NodeService port; peers come with their identity from the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from nodeagent.core.grants import events as ev
from nodeagent.core.grants.changing import check_resident
from nodeagent.core.grants.states import Held
from nodeagent.core.metrics.histogram import WAIT_BOUNDS_S, Histogram
from nodeagent.ports.clients import (
    GrantAsk,
    Granted,
    Peer,
    RefusalKind,
    Refused,
    ResizeAsk,
    Waiting,
)
from nodeagent.ports.clock import Clock
from nodeagent.ports.processes import Process
from nodeagent.ports.views import (
    ContainedView,
    GrantView,
    NodeEvent,
    NodeView,
    TraceView,
)
from nodeagent.settings.daemon import GrantSettings
from nodeagent.shell.api.asks import check_ask, check_memory, check_share
from nodeagent.shell.api.views import Views
from nodeagent.shell.grants.keeper import Answer, Keeper
from nodeagent.shell.journal import Journal
from nodeagent.shell.watch.kernel import KernelWatchManager
from nodeagent.shell.watch.watch import Watch
from nodeagent.units import (
    NS_PER_S,
    GrantId,
)

NO_ROOM: Final = (
    "the daemon has no file descriptors left for another grant: raise its limit (LimitNOFILE= of"
    " the unit, or the container runtime's), or wait until a grant ends"
)


class Queue(Protocol):
    """Requests that go through the queue controller."""

    def wait(self, peer: Peer, ask: GrantAsk) -> AsyncGenerator[Waiting | GrantId, None]:
        """Progress until the grant. Raises Refused. Leaving early withdraws the workload."""

    def check_resume(self, grant: GrantId) -> None:
        """Raises Refused for a grant that the queue has paused."""


class Spills(Protocol):
    """A grant's memory on its way to the host and back. Its calls raise Refused."""

    async def spill(self, grant: GrantId) -> None: ...
    async def resume(self, grant: GrantId) -> None: ...


class Service:
    """`has_room`: whether one more grant leaves enough file descriptors for those that are
    there. `flight` is what the flight recorder has, as JSON. `enclose` builds the driver's wall
    around a new grant's program, before it runs; raises Refused."""

    def __init__(
        self,
        settings: GrantSettings,
        keeper: Keeper,
        views: Views,
        queue: Queue,
        watch: Watch,
        kernel: KernelWatchManager,
        journal: Journal,
        clock: Clock,
        operator_uids: frozenset[int],
        has_room: Callable[[], bool],
        flight: Callable[[], str],
        enclose: Callable[[GrantId, Process], Awaitable[None]],
        spills: Spills,
    ) -> None:
        self._settings = settings
        self._keeper = keeper
        self._views = views
        self._queue = queue
        self._watch = watch
        self._kernel = kernel
        self._journal = journal
        self._clock = clock
        self._operators = operator_uids
        self._has_room = has_room
        self._flight = flight
        self._enclose = enclose
        self._spills = spills
        self.wait_s = Histogram(WAIT_BOUNDS_S)

    def configure(self, settings: GrantSettings) -> None:
        """While the daemon runs."""
        self._settings = settings

    # --- grants ---

    async def create_grant(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]:
        """Progress until the grant. Raises Refused; ends the request when the caller goes away."""
        check_ask(ask, self._settings.max_wait_s)
        ask = self._with_group(peer, ask)
        if ask.queue is not None:
            async with contextlib.aclosing(self._through_queue(peer, ask)) as progress:
                async for step in progress:
                    yield step
            return
        self._check_priority(peer, ask.priority)
        if not self._has_room():
            raise Refused(RefusalKind.EXHAUSTED, NO_ROOM)
        began_ns = self._clock.monotonic_ns()
        asking = self._keeper.ask(ask, peer.duplicate(), may_wait=ask.wait_s > 0)
        end_ns = self._clock.monotonic_ns() + int(ask.wait_s * NS_PER_S)
        reason = "no answer"
        try:
            while True:
                answer = await self._next_answer(asking.answers, end_ns)
                if answer is None:
                    text = f"timed out after {ask.wait_s:g} s: {reason}"
                    raise Refused(RefusalKind.EXHAUSTED, text)
                if isinstance(answer, Refused):
                    raise answer
                if isinstance(answer, Waiting):
                    reason = answer.reason
                    yield answer
                    continue
                self.wait_s.observe((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
                yield await self._enclosed(answer, peer)
                return
        finally:
            self._keeper.withdraw(asking)

    async def _through_queue(
        self, peer: Peer, ask: GrantAsk
    ) -> AsyncGenerator[Granted | Waiting, None]:
        """Requests a grant through the queue controller; a wait of 0 has no end."""
        reason = "no answer"
        began_ns = self._clock.monotonic_ns()
        try:
            async with (
                asyncio.timeout(ask.wait_s or None),
                contextlib.aclosing(self._queue.wait(peer, ask)) as progress,
            ):
                async for step in progress:
                    if not isinstance(step, Waiting):
                        self.wait_s.observe((self._clock.monotonic_ns() - began_ns) / NS_PER_S)
                        yield await self._enclosed(step, peer)
                        return
                    reason = step.reason
                    yield step
        except TimeoutError:
            raise Refused(
                RefusalKind.EXHAUSTED, f"timed out after {ask.wait_s:g} s: {reason}"
            ) from None

    async def _enclosed(self, grant: GrantId, peer: Peer) -> Granted:
        """Set the driver's limit; release the grant if it is required and fails. Raises Refused."""
        try:
            await self._enclose(grant, peer.handle.process)
        except Refused:
            self._keeper.apply(ev.Released(grant))
            raise
        return Granted(self._views.grant(self._held(grant)))

    async def _next_answer(self, answers: asyncio.Queue[Answer], end_ns: int) -> Answer | None:
        """The next answer; None if it timed out. Without a wait it is in the queue already."""
        if not answers.empty():
            return answers.get_nowait()
        left_s = (end_ns - self._clock.monotonic_ns()) / NS_PER_S
        if left_s <= 0:
            return None
        # Not wait_for: before Python 3.12 it may swallow a cancellation that comes with the answer,
        # and the request would outlive its caller.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                return await answers.get()
        return None if answers.empty() else answers.get_nowait()  # it came at the last moment

    def list_grants(self, peer: Peer) -> list[GrantView]:
        return [self._views.grant(held) for held in self._visible(peer)]

    def resize_grant(self, peer: Peer, grant: str, ask: ResizeAsk) -> GrantView:
        found = self._find(peer, grant)
        if ask == ResizeAsk():
            raise Refused(
                RefusalKind.INVALID, "nothing to change: give memory, cores, policy or priority"
            )
        self._check_priority(peer, ask.priority)
        if ask.memory is not None:
            check_memory(ask.memory)
        if ask.share_ppm is not None:
            check_share(ask.share_ppm)
        self._keeper.apply(ev.Resized(found, ask))
        return self._views.grant(self._held(found))

    def pause_grant(self, peer: Peer, grant: str) -> GrantView:
        found = self._find(peer, grant)
        self._keeper.apply(ev.PauseSet(found, paused=True))
        return self._views.grant(self._held(found))

    async def resume_grant(self, peer: Peer, grant: str) -> GrantView:
        found = self._find(peer, grant)
        self._queue.check_resume(found)
        await self._spills.resume(found)
        self._watch.forgive(found)
        return self._views.grant(self._held(found))

    async def spill_grant(self, peer: Peer, grant: str) -> GrantView:
        found = self._find(peer, grant)
        self._queue.check_resume(found)
        await self._spills.spill(found)
        return self._views.grant(self._held(found))

    def release_grant(self, peer: Peer, grant: str) -> GrantView:
        found = self._find(peer, grant)
        check_resident(self._held(found).record)  # It could not be restored afterwards.
        view = self._views.grant(self._held(found))
        self._keeper.apply(ev.Released(found))
        held = self._keeper.grant(found)
        return self._views.grant(held) if held is not None else view

    async def events(self, peer: Peer, after: int, follow: bool) -> AsyncGenerator[NodeEvent, None]:
        """Operators see all; others what is about their own grants and processes."""
        async with contextlib.aclosing(self._journal.follow(after, follow)) as events:
            async for event in events:
                if peer.uid in self._operators or event.uid == peer.uid:
                    yield event

    def dump_events(self, peer: Peer) -> str:
        """Dump of the last events, for operators only, because it names every user's work."""
        if peer.uid not in self._operators:
            raise Refused(RefusalKind.DENIED, "only root may list the events of all users")
        return self._flight()

    async def trace(
        self, peer: Peer, pid: int, interval_s: float
    ) -> AsyncGenerator[TraceView, None]:
        """Raises Refused."""
        async with contextlib.aclosing(self._kernel.trace(peer, pid, interval_s)) as views:
            async for view in views:
                yield view

    # --- what is held ---

    def contained(self, peer: Peer) -> list[ContainedView]:
        """Operators see all; others what is about their own grants and processes."""
        held = self._watch.contained()
        return [one for one in held if peer.uid in self._operators or one.uid == peer.uid]

    def let_go(self, peer: Peer, numbers: Sequence[int], everything: bool) -> list[ContainedView]:
        if peer.uid not in self._operators:
            raise Refused(RefusalKind.DENIED, "only root may release what a detection holds")
        held = {one.number: one for one in self._watch.contained()}
        wanted = list(held) if everything else list(numbers)
        for number in wanted:
            if number not in held:
                raise Refused(
                    RefusalKind.NOT_FOUND,
                    f"nothing is held under number {number}: see `sluice contained`",
                )
        done = self._watch.let_go(wanted, f"by hand, uid {peer.uid}")
        if len(done) < len(wanted):
            failed = ", ".join(str(number) for number in wanted if number not in done)
            raise Refused(
                RefusalKind.UNAVAILABLE,
                f"number {failed} could not be released: see the daemon's log",
            )
        return [held[number] for number in done]

    def node_view(self, peer: Peer) -> NodeView:
        """Operators see all; others their own grants, and the GPUs."""
        return self._views.node(self._visible(peer), peer.uid in self._operators)

    # --- permissions ---

    def _check_priority(self, peer: Peer, priority: int | None) -> None:
        highest = self._settings.max_user_priority
        if priority is not None and priority > highest and peer.uid not in self._operators:
            raise Refused(
                RefusalKind.INVALID,
                f"priority {priority}: uid {peer.uid} may request {highest} at most"
                " (grants.max_user_priority)",
            )

    def _with_group(self, peer: Peer, ask: GrantAsk) -> GrantAsk:
        """The request with the owner of its trusted group. Raises Refused where there may be
        none."""
        if not ask.trusted_group:
            return ask
        if not self._settings.trusted_groups:
            raise Refused(
                RefusalKind.DENIED,
                "this node permits no trusted groups (grants.trusted_groups)",
            )
        return replace(ask, trusted_group=f"uid {peer.uid}/{ask.trusted_group}")

    def _visible(self, peer: Peer) -> list[Held]:
        grants = self._keeper.live().values()
        if peer.uid in self._operators:
            return list(grants)
        return [held for held in grants if held.record.owner.uid == peer.uid]

    def _find(self, peer: Peer, text: str) -> GrantId:
        """Finds a grant by id, by the beginning of an id, or by name. A grant that the peer may not
        see does not exist for it."""
        visible = [held.record for held in self._visible(peer)]
        exact = [record.grant for record in visible if record.grant == text]
        named = [record.grant for record in visible if record.name and record.name == text]
        prefixed = [
            record.grant for record in visible if len(text) >= 4 and record.grant.startswith(text)
        ]
        for found in (exact, named, prefixed):
            if len(found) == 1:
                return found[0]
            if len(found) > 1:
                listed = ", ".join(found[:5])
                raise Refused(RefusalKind.INVALID, f"{text!r} is more than one grant: {listed}")
        raise Refused(RefusalKind.NOT_FOUND, f"no grant {text[:64]!r}, see `sluice ps`")

    def _held(self, grant: GrantId) -> Held:
        held = self._keeper.grant(grant)
        if held is None:
            raise Refused(RefusalKind.NOT_FOUND, f"grant {grant} has ended")
        return held
