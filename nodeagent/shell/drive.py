"""Drives a book: events in, instructions carried out, results back in as events.

One event is handled and all its instructions are carried out before the next event. An event that
arrives meanwhile, from an instruction or from outside, is queued. Errors are handled by kind:

- LedgerFull: it is logged, and the next instruction follows. The ledger's row is now out of date;
  a restart compares it with the processes, the regions and the kubelet's records.
- LedgerLost: `fatal` is called, queued events are dropped, and the error is raised. Without a
  ledger no new grant may be promised, and the next start works from the durable rows.
- Any other error of an instruction: the event's remaining instructions are dropped, because they
  may depend on the failed one. Queued events have happened, so they are still handled.
- The book refuses an event (Refused): the book is unchanged, and queued events are handled.

The first error of the last two kinds is raised when the queue is empty, from the call that brought
the first event; later ones are logged.
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
    """Runs one book. `tape` records each event, its time and the book's instructions."""

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
        """Handle an event. During another call it only queues the event, which that call
        handles."""
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
            steps.close()  # After a cancellation the next event must find `_busy` unset.

    def _steps(self, event: EventT) -> Generator[InstructionT, Exception | None, None]:
        """Yield the instructions one by one; receives the error of the last one, None if it has
        none."""
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
        """Handle one event; return the error that ended it early, else None. Raises LedgerLost."""
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
