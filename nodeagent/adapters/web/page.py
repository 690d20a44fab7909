"""The node's page.

`sluice web` prints a URL that works once, with the permissions of the user that ran it. Root sees
and changes every grant, other users their own; all users see the GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pwd
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final

from nodeagent.core.grants import quantities
from nodeagent.core.page.picture import Key, documents, figures
from nodeagent.ports.clients import NodeService, Peer, RefusalKind, Refused, ResizeAsk
from nodeagent.ports.processes import Process, ProcessHandle
from nodeagent.ports.views import NodeEvent
from sluicecommon.page.board import Board, Frames, Sight
from sluicecommon.page.history import History
from sluicecommon.page.tickets import Tickets
from sluicecommon.page.verbs import Field, Verb, Verbs, offered
from sluicecommon.web.page import Refusal, Viewer

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
SAMPLE_S: Final = 10.0
EVERYTHING: Final = Sight(frozenset({"Node", "Gpu", "Event", "Held"}), None)
_STATUSES: Final = {
    RefusalKind.INVALID: 422,
    RefusalKind.EXHAUSTED: 409,
    RefusalKind.UNAVAILABLE: 409,
    RefusalKind.NOT_FOUND: 404,
    RefusalKind.DENIED: 403,
}


@dataclass(frozen=True, slots=True)
class _NoProcess:
    """Stands for the process of a viewer, which has a uid only: it can hold no grant."""

    uid: int

    @property
    def process(self) -> Process:
        return Process(0, 0, self.uid, self.uid)

    def alive(self) -> bool:
        return False

    def on_exit(self, call: Callable[[], None]) -> None:
        call()

    def signal(self, number: int) -> bool:
        return False

    def duplicate(self) -> ProcessHandle:
        return self

    def close(self) -> None:
        """There is nothing to close."""


def viewer_of(uid: int) -> Peer:
    return Peer(_NoProcess(uid))


class NodePage:
    site = "node"
    takes_tokens = False
    why_not_ready = ""

    def __init__(
        self,
        name: str,
        tickets: Tickets[int],
        service: NodeService,
        events: Callable[[int], list[NodeEvent]],
        operators: frozenset[int],
        record: Callable[[str, int], object],
        instance: str,
    ) -> None:
        """`events` returns the events after a number; `record` writes a user's action, given as
        text and uid, to the audit trail."""
        self._name = name
        self._tickets = tickets
        self._service = service
        self._events = events
        self._operators = operators
        self._record = record
        self._root = viewer_of(min(operators, default=0))
        self._board = Board(instance)
        self.frames: Frames | None = Frames(self._board)
        self._history = History()
        self._waited: dict[str, float] = {}
        self._shown: set[Key] = set()
        self._watched = 0
        self._sampled_s = 0.0
        self._running: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while True:
            try:
                if self._watched or monotonic() - self._sampled_s >= SAMPLE_S:
                    self.look()
            except Exception:  # A defect of the page must not end the daemon.
                log.exception(
                    "page: updating it failed with an internal error; it shows the last state"
                )
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        view = self._service.node_view(self._root)
        if monotonic() - self._sampled_s >= SAMPLE_S:
            since_s = monotonic() - self._sampled_s
            self._sampled_s = monotonic()
            waited = {
                one.grant: sum(device.throttled_seconds_total for device in one.devices)
                for one in view.grants
            }
            ratios = {
                str(grant): (now - self._waited[grant]) / since_s
                for grant, now in waited.items()
                if grant in self._waited
            }
            self._waited = {str(grant): now for grant, now in waited.items()}
            sampled = figures(view, ratios)
            for name, found in sampled.items():
                self._history.add(name, found, time())
            self._history.keep(sampled.keys())
        users = {one.uid: _user(one.uid) for one in view.grants}
        made = documents(
            self._name, view, self._events(0), self._service.contained(self._root), users
        )
        for key, fields in made.items():
            self._board.put(key, fields)
        for key in self._shown - made.keys():
            self._board.drop(key)
        self._shown = set(made)

    # -- viewers ---------------------------------------------------------------------------------

    async def enter(self, secret: str) -> str:
        redeemed = self._tickets.redeem(secret, monotonic())
        if redeemed is None:
            raise Refusal(
                403,
                "this URL has been used, or is older than two minutes: run `sluice web` again",
            )
        session, uid = redeemed
        log.info("page: session opened for uid %d", uid)
        return session

    async def viewer(self, credential: str) -> Viewer:
        uid = self._tickets.whose(credential, monotonic())
        if uid is None:
            raise Refusal(401, "your session has ended: run `sluice web` for a new URL")
        own = Sight(frozenset({"Node", "Gpu"}), frozenset({str(uid)}))
        sight = EVERYTHING if uid in self._operators else own
        return Viewer(_user(uid), sight, {"actions": "own", "whatif": False}, uid)

    def leave(self, credential: str) -> None:
        self._tickets.end(credential)

    def watched(self, viewers: int) -> None:
        if viewers and not self._watched:
            self.look()
        self._watched = viewers

    # -- queries and actions ----------------------------------------------------------------------

    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any:
        if what == "history":
            name = given.get("gpu", "")
            keys = [("Gpu", "", name), *(k for k in self._shown if k[0] == "Work" and k[2] == name)]
            if not any(key in self._shown and viewer.sight.sees(key) for key in keys):
                raise Refusal(404, "no such GPU or grant, or no permission to see it")
            return self._history.read(name, time())
        if what == "may":
            key = ("Work", given.get("namespace", ""), given.get("name", ""))
            is_there = key in self._shown and viewer.sight.sees(key)
            return offered(VERBS, given.get("kind", ""), None if is_there else ())
        raise Refusal(404, "no such query")

    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any:
        """Carry out an action with the same checks as for the user's calls over the socket."""
        grant, uid = given.get("name"), viewer.whom
        if what not in VERBS or not isinstance(grant, str):
            raise Refusal(404, "no such action")
        peer = viewer_of(uid)
        try:
            await VERBS[what].does(self._service, peer, grant, given)
        except Refused as refused:
            raise Refusal(_STATUSES[refused.kind], refused.reason) from None
        text = f"{what} of grant {grant[:64]} by {viewer.name} over the page"
        self._record(text, uid)
        self.look()
        return {"done": text}


def _resize_of(given: Mapping[str, Any]) -> ResizeAsk:
    """The new limits of a resize. Raises Refusal."""
    texts = {name: str(given.get(name) or "").strip()[:64] for name in ("memory", "cores")}
    try:
        return ResizeAsk(
            memory=quantities.parse_memory(texts["memory"]) if texts["memory"] else None,
            share_ppm=quantities.parse_cores(texts["cores"]) if texts["cores"] else None,
        )
    except ValueError as error:
        raise Refusal(422, str(error)) from None


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


async def _resize(service: NodeService, peer: Peer, grant: str, given: Mapping[str, Any]) -> None:
    service.resize_grant(peer, grant, _resize_of(given))


async def _pause(service: NodeService, peer: Peer, grant: str, given: Mapping[str, Any]) -> None:
    service.pause_grant(peer, grant)


async def _resume(service: NodeService, peer: Peer, grant: str, given: Mapping[str, Any]) -> None:
    await service.resume_grant(peer, grant)


_Do = Callable[[NodeService, Peer, str, Mapping[str, Any]], Awaitable[None]]
_GRANTS: Final = frozenset({"Grant"})
VERBS: Final[Verbs[_Do]] = {
    "resize": Verb(
        "Resize",
        "The limits of the running grant change at once.",
        _resize,
        _GRANTS,
        (
            Field("memory", "Memory on each GPU, such as 8Gi; empty: unchanged"),
            Field("cores", "Share of the GPU's time in percent; empty: unchanged", "decimal"),
        ),
    ),
    "pause": Verb(
        "Pause",
        "The grant's kernel launches are blocked; its memory stays allocated.",
        _pause,
        _GRANTS,
    ),
    "resume-grant": Verb(
        "Resume", "The grant's kernel launches are allowed again.", _resume, _GRANTS
    ),
}
"""The page's actions."""
