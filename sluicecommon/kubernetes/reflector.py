"""A reflector: keeps the objects of one kind current, and decides which request comes next.

No I/O: the shell (`following`) makes the request in `next`, passes in the answer, and applies the
returned changes. Objects are never dropped because of an error: while the API server does not
answer, the last state stands, and a later list reports deletions.

A streaming list is requested first (`sendInitialEvents`), so that the API server need not hold a
whole list in memory. A server without it answers 400 or 422, and is listed in pages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from sluicecommon.kubernetes.decoding import BadAnswer, Bookmark, Decoder, Item, Lines, StreamError
from sluicecommon.kubernetes.errors import GONE

T = TypeVar("T")

PAGE: Final = 500
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
SILENCE_S: Final = 150.0
"""The server sends a bookmark each minute. A connection without data for longer than two
minutes is considered dead; a new watch from the same version costs one request."""
WATCH_S: Final = 300
"""Time after which the server ends a watch, so that clients spread over the servers again."""
STREAM_TRIES: Final = 3
"""Streaming lists that may end early before lists in pages are tried instead."""
_NO_STREAMING: Final = (400, 422)
_TOO_LARGE_VERSION: Final = 504
"""The server's cache has not reached the requested version."""

Parameters = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """GET one page of the list."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Watch:
    """GET, and pass in each piece when it arrives."""

    parameters: Parameters
    silence_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Changed(Generic[T]):
    """A new object, or one that differs from the last reported state."""

    item: Item[T]


@dataclass(frozen=True, slots=True)
class Removed:
    key: str


@dataclass(frozen=True, slots=True)
class Synced:
    """A list is complete: all objects and all deletions have been reported."""


Change = Changed[T] | Removed | Synced


class Reflector(Generic[T]):
    def __init__(
        self,
        decoder: Decoder[T],
        selectors: Parameters = (),
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`selectors`: fieldSelector, labelSelector. `jitter`: 0.5 to 1.5, drawn for each pause and
        watch, so that a thousand nodes do not reconnect at once."""
        self.synced = False
        """True once a whole list has been reported; stays true during errors."""
        self.trouble = "not listed yet"
        """The error for which the state may be outdated; empty if it is current."""
        self.denied = False
        """True if the error is a lack of rights, so that retrying is useless."""
        self.missing = False
        """True if the error is that the kind does not exist at present."""
        self.lists_total = 0
        self._decoder = decoder
        self._selectors = selectors
        self._jitter = jitter
        self._lines = Lines()
        self._versions: dict[str, str] = {}
        """resourceVersion of every reported object, by key."""
        self._listed: set[str] | None = None
        """Keys of the list that is being read; None outside a list."""
        self._version = ""
        """resourceVersion from which the watch continues."""
        self._streams = True
        self._stream_failures = 0
        self._exactly = False
        """True if the next list must come from etcd, in pages, since the server's cache is
        behind."""
        self._failures = 0
        self._received = False
        """True once the open watch has sent an event."""
        self._after: Fetch | Watch | None = None
        self.next: Fetch | Watch | Pause = self._list()

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def version(self) -> int:
        """resourceVersion of the collection up to which all is reported; 0 if not known."""
        return int(self._version) if self._version.isascii() and self._version.isdigit() else 0

    # --- answers ------------------------------------------------------------------------------

    def paused(self) -> None:
        """The pause is over."""
        assert self._after is not None
        self.next, self._after = self._after, None

    def page(self, body: bytes) -> list[Change[T]]:
        """The answer to a Fetch."""
        try:
            page = self._decoder.page(body)
        except BadAnswer as error:
            return self._failed(str(error), self._list())
        assert self._listed is not None
        changes = [change for one in page.items for change in self._changed(one)]
        if page.more:
            self.next = self._page_after(page.more)
            return changes
        self._version = page.version
        return changes + self._list_ends()

    def opened(self) -> None:
        """The server accepted the watch; the first event may come much later."""
        if self._listed is None:
            self.trouble, self.denied, self.missing = "", False, False

    def piece(self, data: bytes) -> list[Change[T]]:
        """Process a piece of a watch's answer. If `next` is another request afterwards, the caller
        closes the connection and discards the rest."""
        changes: list[Change[T]] = []
        try:
            for line in self._lines.feed(data):
                changes += self._line(line)
                if not isinstance(self.next, Watch):
                    break
        except BadAnswer as error:
            changes += self._failed(str(error), self._repeat())
        return changes

    def ended(self, why: str = "") -> list[Change[T]]:
        """The watch ended: by the server, or with `why` because the connection broke or timed
        out."""
        self._lines.forget()
        if self._listed is not None:
            self._stream_failures += 1
            self._streams = self._stream_failures < STREAM_TRIES
            return self._failed(why or "the list ended before its end", self._list())
        if why:
            return self._failed(why, self._again())
        if not self._received:  # A server that ends every watch at once is retried with a pause.
            return self._failed("", self._again())
        self.next = self._again()
        return []

    def failed(self, why: str) -> list[Change[T]]:
        """The request was not answered."""
        return self._failed(why, self._repeat())

    def refused(
        self, status: int, message: str, retry_after_s: float | None = None
    ) -> list[Change[T]]:
        """The API server refused the request."""
        listing = self._listed is not None
        if listing and isinstance(self.next, Watch) and status in _NO_STREAMING and self._streams:
            self._streams = False
            self.next = self._list()
            return []
        if status == GONE or (listing and status == _TOO_LARGE_VERSION):
            self._exactly = listing and not isinstance(self.next, Watch)
            return self._failed(f"{status}: {message}", self._list(), retry_after_s)
        self._failed(f"{status}: {message}", self._repeat(), retry_after_s)
        self.denied = status in (401, 403)
        self.missing = status == 404
        return []

    def vanished(self) -> list[Change[T]]:
        """The kind's definition was deleted, and with it all objects of the kind; the watch may
        have ended before it reported the last of them."""
        changes: list[Change[T]] = [Removed(key) for key in self._versions]
        self._versions.clear()
        self._version = ""
        if isinstance(self.next, Pause):
            self._after = self._list()
        else:
            self.next = self._list()
        return changes

    def restart(self) -> None:
        """The request was abandoned: the next one is a list, which reports all objects again and
        those deleted since."""
        self._lines.forget()
        self._versions = dict.fromkeys(self._versions, "")
        self._after, self.synced = None, False
        self.next = self._list()

    # --- events -------------------------------------------------------------------------------

    def _line(self, line: bytes) -> list[Change[T]]:
        event = self._decoder.line(line)
        if isinstance(event, StreamError):
            what = f"{event.code}: {event.message}"
            gone = event.code == GONE or self._listed is not None
            return self._failed(what, self._list() if gone else self._again())
        self._received = True
        if isinstance(event, Bookmark):
            self._version = event.version
            if event.ends_initial and self._listed is not None:
                return self._list_ends()
            self._succeeded()
            return []
        if self._listed is None:
            self._version = event.item.version
            self._succeeded()
        if event.deleted:
            return self._remove(event.item.key)
        return self._changed(event.item)

    def _changed(self, item: Item[T]) -> list[Change[T]]:
        if self._listed is not None:
            self._listed.add(item.key)
        if self._versions.get(item.key) == item.version:
            return []
        self._versions[item.key] = item.version
        return [Changed(item)]

    def _remove(self, key: str) -> list[Change[T]]:
        if self._listed is not None:
            self._listed.discard(key)
        return [Removed(key)] if self._versions.pop(key, None) is not None else []

    def _list_ends(self) -> list[Change[T]]:
        assert self._listed is not None
        gone = [key for key in self._versions if key not in self._listed]
        streamed = isinstance(self.next, Watch)
        self._listed, self._exactly, self.synced = None, False, True
        self._stream_failures = 0
        self._succeeded()
        if not streamed:
            self.next = self._again()
        return [change for key in gone for change in self._remove(key)] + [Synced()]

    # --- the next request ---------------------------------------------------------------------

    def _succeeded(self) -> None:
        self._failures, self.trouble, self.denied, self.missing = 0, "", False, False

    def _failed(
        self, why: str, then: Fetch | Watch, pause_s: float | None = None
    ) -> list[Change[T]]:
        if why:
            self.trouble = why
        grown = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._failures, 10))
        self._failures += 1
        self._lines.forget()
        self._after = then
        self.next = Pause(max(grown * self._jitter(), pause_s or 0.0))
        return []

    def _repeat(self) -> Fetch | Watch:
        """Repeat a failed request; a page restarts the list, since its token may be the cause."""
        return self._list() if self._listed is not None else self._again()

    def _list(self) -> Fetch | Watch:
        self.lists_total += 1
        self._listed, self._received = set(), False
        if self._streams:
            return self._watch(
                ("sendInitialEvents", "true"), ("resourceVersionMatch", "NotOlderThan")
            )
        if self._exactly:
            return Fetch((*self._selectors, ("limit", str(PAGE))))
        if self._version:
            at_least = ("resourceVersionMatch", "NotOlderThan")
            return Fetch((*self._selectors, ("resourceVersion", self._version), at_least))
        # One list from the server's cache: pages from etcd cost it six times as much.
        return Fetch((*self._selectors, ("resourceVersion", "0")))

    def _page_after(self, token: str) -> Fetch:
        return Fetch((*self._selectors, ("limit", str(PAGE)), ("continue", token)))

    def _again(self) -> Watch:
        """Continue the watch from the last version."""
        self._received = False
        return self._watch(("resourceVersion", self._version))

    def _watch(self, *how: tuple[str, str]) -> Watch:
        end = ("timeoutSeconds", str(max(1, int(WATCH_S * self._jitter()))))
        also = (("watch", "true"), ("allowWatchBookmarks", "true"), end)
        return Watch((*self._selectors, *also, *how), SILENCE_S)
