"""Drives a book: events in, instructions carried out, results back in as events.

One event and all its instructions come before the next event. An event that arrives meanwhile,
from whatever is being carried out or from outside, waits in line. What fails:

- LedgerFull: logged, and the next instruction follows. The row that is missing is older than the
  truth; a restart compares it with processes, regions and what others remember.
- LedgerLost: `fatal` is told, everything in line is dropped, the error is raised. Without a ledger
  nothing more may be promised, and the next start works from what is durable.
- Any other error in carrying out: what the same event still wanted done is dropped, for it was
  ordered behind what failed. Events in line have happened and are handled all the same.
- The book refuses an event (Refused): the book is unchanged, events in line are handled.

The first error of the last two kinds is raised when the line is empty, to whoever brought the
event that began it; later ones are logged.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Generic, TypeVar

from nodeagent.core.flight import Tape
from nodeagent.core.reducer import Book
from nodeagent.ports.ledger import LedgerFull, LedgerLost

log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
InstructionT = TypeVar("InstructionT")


class Drive(Generic[EventT, InstructionT]):
    """`tape` notes each event, its time and what the book decided."""

    def __init__(
        self,
        book: Book[EventT, InstructionT],
        now_ns: Callable[[], int],
        fatal: Callable[[BaseException], None],
        tape: Tape[EventT],
    ) -> None:
        self._book = book
        self._now_ns = now_ns
        self._fatal = fatal
        self._tape = tape
        self._line: deque[EventT] = deque()
        self._busy = False

    @property
    def line(self) -> tuple[EventT, ...]:
        """Events that have arrived and are not handled yet."""
        return tuple(self._line)

    def add(self, event: EventT) -> None:
        """Queue an event that follows from the instruction that is being carried out."""
        assert self._busy, f"{type(event).__name__} follows from nothing"
        self._line.append(event)

    def run(self, event: EventT, carry_out: Callable[[InstructionT], None]) -> None:
        """Returns at once when called in the middle of another: that one takes the event over."""
        steps = self._steps(event)
        error: Exception | None = None
        try:
            while (do := _next(steps, error)) is not None:
                error = None
                try:
                    carry_out(do)
                except Exception as failed:
                    error = failed
        finally:
            steps.close()

    async def run_async(
        self, event: EventT, carry_out: Callable[[InstructionT], Awaitable[None]]
    ) -> None:
        steps = self._steps(event)
        error: Exception | None = None
        try:
            while (do := _next(steps, error)) is not None:
                error = None
                try:
                    await carry_out(do)
                except Exception as failed:
                    error = failed
        finally:
            steps.close()  # cancelled in the middle: the next event begins anew

    def _steps(self, event: EventT) -> Generator[InstructionT, Exception | None, None]:
        """The instructions one by one; sent back is what carrying out the last one raised."""
        self._line.append(event)
        if self._busy:
            return
        self._busy = True
        first: Exception | None = None
        try:
            while self._line:
                event = self._line.popleft()
                error = yield from self._one(event)
                if error is not None and first is None:
                    first = error
                elif error is not None:
                    log.error("%s: %s", type(event).__name__, error)
        except LedgerLost as error:
            self._line.clear()
            self._fatal(error)
            raise
        finally:
            self._busy = False
        if first is not None:
            raise first

    def _one(self, event: EventT) -> Generator[InstructionT, Exception | None, Exception | None]:
        """Returns what ended it early. Raises LedgerLost."""
        now_ns = self._now_ns()
        try:
            instructions = self._book.handle(event, now_ns)
        except Exception as error:
            self._tape.note(event, now_ns, None)
            return error
        self._tape.note(event, now_ns, instructions)
        for do in instructions:
            failed = yield do
            if isinstance(failed, LedgerFull):
                log.error("the ledger is full: %s", failed)
            elif isinstance(failed, LedgerLost):
                raise failed
            elif failed is not None:
                return failed
        return None


def _next(
    steps: Generator[InstructionT, Exception | None, None], error: Exception | None
) -> InstructionT | None:
    try:
        return steps.send(error)
    except StopIteration:
        return None
