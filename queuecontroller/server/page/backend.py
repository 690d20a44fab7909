"""The backend of the queue's page: requests and actions, each with the viewer's own rights."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any, Final, Protocol

from queuecontroller.kueueapi.manifests.documents import misread_of
from queuecontroller.kueueapi.manifests.sources import sources_of
from queuecontroller.server.page import questions
from queuecontroller.server.page.picture import Picture
from queuecontroller.server.page.viewers import ACTED_ON, ByToken, Viewers, allowed
from queuecontroller.server.page.what_if import WhatIfRunner
from queuecontroller.state.access import Act, Caller, Denied, Target, check
from queuecontroller.state.access import may as may_caller
from queuecontroller.state.book import Book
from queuecontroller.state.objects.authority import owned
from queuecontroller.state.objects.submission import Refused
from queuecontroller.state.records import Change, ObjectId
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.page.board import Frames
from sluicecommon.page.verbs import Verb, Verbs, offered
from sluicecommon.web.page import Refusal, Viewer

log = logging.getLogger(__name__)

ROUND_S: Final = 0.25
MORE_S: Final = 0.02
"""Pause between two portions of updates, in which the service's loop runs other tasks."""
LONGEST_YAML: Final = 64 << 10
_STATUSES: Final = {
    "invalid": 422,
    "not_found": 404,
    "exists": 409,
    "conflict": 409,
    "denied": 403,
    "exhausted": 413,
}


@dataclass(frozen=True, slots=True)
class _Stops:
    """How an action stops an object or lets it run."""

    policy: str
    """The stopPolicy that it sets on a queue; a workload is active with policy None."""
    step: str
    do: Callable[[Book, ObjectId, int], object]


VERBS: Final[Verbs[_Stops]] = {
    "hold": Verb(
        "Hold",
        "A queue admits no new workloads; a workload is stopped. Nothing is deleted.",
        _Stops("Hold", "hold", lambda book, what, now_ns: book.hold(what, False, now_ns)),
        frozenset(ACTED_ON),
        held=False,
    ),
    "resume": Verb(
        "Resume",
        "A queue admits workloads again; a workload is queued again.",
        _Stops("None", "resume", lambda book, what, now_ns: book.resume(what, now_ns)),
        frozenset(ACTED_ON),
        held=True,
    ),
    "drain": Verb(
        "Hold and drain",
        "The queue admits no new workloads, and its running workloads are stopped and requeued.",
        _Stops("HoldAndDrain", "hold", lambda book, what, now_ns: book.hold(what, True, now_ns)),
        frozenset(ACTED_ON) - {"Workload"},
    ),
}
"""The page's actions."""


class Document(Protocol):
    def __call__(self, identity: ObjectId) -> Mapping[str, Any] | None:
        """The object as stored in the API server; None if not available."""


class QueuePage:
    site = "queue"

    def __init__(
        self,
        viewers: Viewers,
        shell: Callable[[], Shell | None],
        head: Callable[[], dict[str, Any]],
        new_instance: Callable[[], str],
        why_not: Callable[[], str],
        document: Document = lambda identity: None,
    ) -> None:
        """`shell` returns the shell of the book, None while another replica leads. `head` returns
        facts about the service."""
        self._viewers = viewers
        self._shell = shell
        self._head = head
        self._new_instance = new_instance
        self._why_not = why_not
        self._document = document
        self._what_ifs = WhatIfRunner()
        self._picture: Picture | None = None
        self._of: Shell | None = None
        self._watched = 0
        self._running: asyncio.Task[None] | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._running = asyncio.create_task(self._run())
        self._running.add_done_callback(_log_failure)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while True:
            self._follow()
            more = False
            if self._picture is not None:
                self._picture.sample(time())
                more = self._watched > 0 and self._picture.round(time())
            await asyncio.sleep(MORE_S if more else ROUND_S)

    def _follow(self) -> None:
        """Create a new picture when the shell changes, as when this replica becomes leader."""
        shell = self._shell()
        if shell is self._of:
            return
        self._of = shell
        self._picture = None
        if shell is not None:
            self._picture = Picture(shell, self._new_instance(), self._head)
            shell.listeners.append(self._on_change(self._picture))

    def _on_change(self, picture: Picture) -> Callable[[Change, set[ObjectId]], None]:
        return lambda change, touched: picture.changed(change, touched)

    # -- called by the server ---------------------------------------------------------------------

    @property
    def takes_tokens(self) -> bool:
        return self._viewers.takes_tokens

    @property
    def frames(self) -> Frames | None:
        self._follow()
        return self._picture.frames if self._picture is not None else None

    @property
    def why_not_ready(self) -> str:
        return self._why_not()

    async def enter(self, secret: str) -> str:
        return await self._viewers.enter(secret)

    async def viewer(self, credential: str) -> Viewer:
        return await self._viewers.viewer(credential)

    def leave(self, credential: str) -> None:
        self._viewers.leave(credential)

    def watched(self, viewers: int) -> None:
        self._watched = viewers

    # -- questions --------------------------------------------------------------------------------

    async def ask(self, viewer: Viewer, what: str, given: Mapping[str, str]) -> Any:
        shell = self._there()
        try:
            if what == "explain":
                identity = self._seen(viewer, {**given, "kind": "Workload"})
                return questions.explained(shell, identity[1], identity[2])
            if what == "object":
                identity = self._seen(viewer, given)
                return {"yaml": questions.as_yaml(self._shown(shell, viewer, identity))}
            if what == "history":
                return self._history(viewer, given.get("gpu", ""))
            if what == "may":
                return await self._may(viewer, self._seen(viewer, given))
        except Refused as refused:
            raise Refusal(_STATUSES.get(refused.kind, 400), str(refused)) from None
        raise Refusal(404, "no such request")

    def _there(self) -> Shell:
        self._follow()
        if self._of is None or self._picture is None:
            raise Refusal(503, self._why_not() or "another replica is the leader")
        return self._of

    def _seen(self, viewer: Viewer, given: Mapping[str, Any]) -> ObjectId:
        """The requested object; one that the viewer may not see is reported as not found. Raises
        Refusal."""
        identity = tuple(given.get(part) or "" for part in ("kind", "namespace", "name"))
        if not all(isinstance(part, str) and len(part) <= 400 for part in identity):
            raise Refusal(400, "kind, namespace and name must be strings")
        kind, namespace, name = map(str, identity)
        if not kind or not name or not viewer.sight.sees((kind, namespace, name)):
            raise Refusal(
                404, f"{kind[:64]} {namespace[:64]}/{name[:64]}: not found, or not visible to you"
            )
        return (kind, namespace, name)

    def _shown(self, shell: Shell, viewer: Viewer, identity: ObjectId) -> dict[str, Any]:
        """The object as the viewer may see it. Raises Refused."""
        document = self._document(identity)
        if document is not None:
            return dict(document)
        _, shown = shell.views.render(identity, shell.now_ns())
        if identity[0] == "Workload" and not self._may_see_command(viewer, shell, identity):
            questions.without_command(shown)
        return shown

    def _may_see_command(self, viewer: Viewer, shell: Shell, identity: ObjectId) -> bool:
        caller = viewer.whom
        if not isinstance(caller, Caller):
            return False
        return may_caller(caller, Act.SEE_COMMAND, _whose(shell, identity))

    def _history(self, viewer: Viewer, gpu: str) -> Any:
        if self._picture is None or not viewer.sight.sees(("Gpu", "", gpu)):
            raise Refusal(404, "GPU not found, or not visible to you")
        return self._picture.history.read(gpu, time())

    async def _may(self, viewer: Viewer, identity: ObjectId) -> Any:
        """The verbs offered as buttons; the right is checked again when an action is carried
        out."""
        kind, namespace, name = identity
        if kind not in ACTED_ON:
            return {"verbs": []}
        caller = viewer.whom
        if isinstance(caller, Caller):
            act, target = self._needed(self._there(), identity)
            is_allowed = may_caller(caller, act, target)
        else:
            assert isinstance(self._viewers, ByToken), "tokens are its"
            client = self._viewers.client(str(caller))
            try:
                is_allowed = await allowed(client, "patch", ACTED_ON[kind], namespace, name)
            except (ApiRefused, ApiAway):
                is_allowed = False
            finally:
                await client.close()
        return offered(VERBS, kind, None if is_allowed else ())

    def _needed(self, shell: Shell, identity: ObjectId) -> tuple[Act, Target | None]:
        """Raises Refused."""
        if identity[0] == "Workload":
            return Act.CHANGE_WORKLOAD, _whose(shell, identity)
        return Act.CHANGE_OBJECTS, None

    # -- actions ----------------------------------------------------------------------------------

    async def act(self, viewer: Viewer, what: str, given: Mapping[str, Any]) -> Any:
        shell = self._there()
        try:
            if what == "whatif":
                return await self._what_if(viewer, shell, given)
            if what in VERBS:
                identity = self._seen(viewer, given)
                return await self._stop_or_go(viewer, shell, what, identity)
        except Refused as refused:
            raise Refusal(_STATUSES.get(refused.kind, 400), str(refused)) from None
        except Denied as denied:
            raise Refusal(403, str(denied)) from None
        raise Refusal(404, "no such action")

    async def _stop_or_go(
        self, viewer: Viewer, shell: Shell, verb: str, identity: ObjectId
    ) -> dict[str, Any]:
        kind, _, name = identity
        stops = VERBS[verb].does
        if kind not in VERBS[verb].kinds:
            raise Refusal(422, f"a {kind} does not support {verb}")
        subject = "/".join(part for part in identity if part)
        text = f"{verb} by {viewer.name} over the page"
        caller = viewer.whom
        if isinstance(caller, Caller):
            act, target = self._needed(shell, identity)
            check(caller, act, target, f"{verb} {kind} {name}")
            shell.step(stops.step, lambda book, now_ns: stops.do(book, identity, now_ns))
        else:
            await self._patch(str(caller), stops.policy, identity)
        shell.step("page", lambda book, now_ns: book.journal.note("ByPage", subject, text, now_ns))
        await shell.durable()
        log.info("page: %s: %s", subject, text)
        return {"done": text}

    async def _patch(self, token: str, policy: str, identity: ObjectId) -> None:
        """Write with the viewer's token: RBAC decides, and the API server's audit log has the
        viewer's name."""
        assert isinstance(self._viewers, ByToken), "tokens are its"
        kind, namespace, name = identity
        spec = {"active": policy == "None"} if kind == "Workload" else {"stopPolicy": policy}
        client = self._viewers.client(token)
        try:
            await client.merge_patch(ACTED_ON[kind], name, {"spec": spec}, namespace)
        except ApiRefused as refused:
            raise Refusal(403 if refused.status == 403 else 409, str(refused)) from None
        except ApiAway as error:
            raise Refusal(503, f"the API server cannot be reached: {error}") from None
        finally:
            await client.close()

    async def _what_if(self, viewer: Viewer, shell: Shell, given: Mapping[str, Any]) -> Any:
        if not viewer.rights.get("whatif"):
            raise Refusal(403, "a what-if shows all workloads: it requires the right to see them")
        text = given.get("yaml")
        if not isinstance(text, str) or len(text) > LONGEST_YAML:
            raise Refusal(422, f"yaml: must be a string of at most {LONGEST_YAML >> 10} KiB")
        # The manifest reader also limits YAML aliases, which could expand without bound.
        found, wrong = await asyncio.to_thread(sources_of, {"what-if": text})
        if wrong:
            raise Refusal(422, "\n".join(str(misread_of(*one)) for one in wrong[:20]))
        if not found:
            raise Refusal(422, "yaml: no objects: write the changed or new objects")
        changes = [dict(one.body) for one in found]
        now = questions.manifests_of(shell)
        before = await self._what_ifs.play(viewer.name, now)
        after = await self._what_ifs.play(viewer.name, questions.replaced(now, changes))
        return questions.compared(before, after)


def _whose(shell: Shell, identity: ObjectId) -> Target:
    """Raises Refused."""
    record = shell.book.find(identity[1], identity[2])
    pods = shell.book.nodes.of_workload(record.key).values()
    return owned(record, frozenset(one.node for one in pods))


def _log_failure(task: asyncio.Task[None]) -> None:
    """Log a failed update task; a defect of the page must not stop the controller."""
    if not task.cancelled() and task.exception() is not None:
        log.error("page: updates stopped by an internal error", exc_info=task.exception())
