"""The running daemon: its loops, and the order of start and stop.

A defect in a loop ends the process (the unit starts it again, jobs go on meanwhile); an
expected failure, such as a driver that does not answer, is a value the core decides on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from nodeagent.core.gpus.sampling import Pace, interval_s, next_pace
from nodeagent.core.grants.states import Rules
from nodeagent.ports.clock import Clock
from nodeagent.ports.gpus import NodeReading, Nvml
from nodeagent.ports.ledger import LedgerLost
from nodeagent.settings.daemon import Settings
from nodeagent.shell.api.views import Views
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.rate_limited_log import RateLimitedLog
from nodeagent.shell.turns import Turns
from nodeagent.shell.watch.watch import Watch
from nodeagent.units import NS_PER_MS, NS_PER_US, Nanoseconds
from sluicecommon.background import BackgroundTasks

log = logging.getLogger(__name__)

HOUSEKEEPING_S: Final = 1.0
NVML_START_S: Final = 15.0
"""The first reading of a new reader; see adapters.nvml."""
WATCHDOG_SLACK_S: Final = 10.0
"""Extra time for a machine that swaps."""
AT_A_LIMIT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""The machine is at its end, and we are not."""
EXIT_OK: Final = 0
EXIT_DEFECT: Final = 70
EXIT_LEDGER_LOST: Final = 75
"""EX_TEMPFAIL: start again and look at what is there."""


class Endpoint(Protocol):
    """Something clients connect to."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...


def rules_of(settings: Settings, boot_id: str) -> Rules:
    throttle = settings.throttle
    return Rules(
        burst_ns=Nanoseconds(int(throttle.burst_ms * NS_PER_MS)),
        inflight_ns=Nanoseconds(int(throttle.inflight_ms * NS_PER_MS)),
        chunk_ns=Nanoseconds(int(throttle.chunk_us * NS_PER_US)),
        boot_id=boot_id,
        strategy=settings.grants.strategy,
        max_waiting=settings.grants.max_waiting,
        max_grants_per_uid=settings.grants.max_grants_per_uid,
        max_slots_ratio_per_uid=settings.grants.max_slots_percent_per_uid / 100,
        managed_beyond=settings.grants.managed_oversubscription,
    )


class Node:
    def __init__(
        self,
        settings: Callable[[], Settings],
        clock: Clock,
        keeper: Keeper,
        turns: Turns,
        gpus: Gpus,
        nvml: Nvml,
        watch: Watch,
        views: Views,
        endpoints: Sequence[Endpoint],
        notify: Callable[[str], None],
        held_up_s: Callable[[], float],
    ) -> None:
        """`settings` as they are now. `held_up_s`: how long the next reading may have to wait for a
        change of MIG."""
        self._settings = settings
        self._clock = clock
        self._keeper = keeper
        self._turns = turns
        self._gpus = gpus
        self._nvml = nvml
        self._watch = watch
        self._views = views
        self._endpoints = endpoints
        self._notify = notify
        self._ended: asyncio.Future[int] | None = None
        self._planning: asyncio.TimerHandle | None = None
        self._last_reading: NodeReading | None = None
        self._pace = Pace()
        self._stale = False
        self._reading = asyncio.Lock()
        self._seldom = RateLimitedLog(log)
        self._held_up_s = held_up_s

    def stop(self, status: int = EXIT_OK) -> None:
        """Ask the daemon to end; the first call decides the exit status."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(status)

    def fatal(self, error: BaseException) -> None:
        """The ledger is gone, or we have a defect: end now, change nothing more."""
        if isinstance(error, LedgerLost):
            log.critical("the ledger cannot be written any more: %s", error)
            self.stop(EXIT_LEDGER_LOST)
        else:
            log.critical("defect", exc_info=error)
            self.stop(EXIT_DEFECT)

    async def run(self) -> int:
        """Serve until stopped; the exit status."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        loop.set_exception_handler(self._unhandled)
        loops = BackgroundTasks(self.fatal)
        try:
            self._keeper.restore()
            self._watch.resume()
            await self.read_gpus()
            for endpoint in self._endpoints:
                await endpoint.start()
            self._keeper.on_registered.append(self._plan_soon)
            self._plan()
            loops.spawn(self._gpu_loop(), "reading of the GPUs")
            loops.spawn(self._housekeeping_loop(), "housekeeping")
            self._notify("READY=1")
            log.info("serving %d GPUs", len(self._gpus.readings))
            return await self._ended
        except LedgerLost as error:
            log.critical("the ledger cannot be written any more: %s", error)
            return EXIT_LEDGER_LOST
        finally:
            self._notify("STOPPING=1")
            if self._planning is not None:
                self._planning.cancel()
            loops.cancel()
            for endpoint in self._endpoints:
                with contextlib.suppress(OSError):
                    await endpoint.close()
            self._watch.close()
            await self._nvml.close()
            self._keeper.close()

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, ConnectionError):  # a client left in the middle of a sentence
            log.debug("connection: %s", error)
        elif isinstance(error, OSError) and error.errno in AT_A_LIMIT:
            # asyncio could not accept; it tries again by itself.
            self._seldom.warning("event loop: %s: %s", context.get("message"), error)
        elif self._ended is not None and self._ended.done():
            log.debug("while stopping: %s", context.get("message"), exc_info=error)  # type: ignore[arg-type]
        elif isinstance(error, BaseException):
            self.fatal(error)
        else:
            log.warning("event loop: %s", context.get("message"))

    def _ok(self, name: str) -> None:
        self._views.loops[name] = self._clock.unix_s()

    def _plan_soon(self) -> None:
        if self._planning is not None:
            self._planning.cancel()
            self._planning = asyncio.get_running_loop().call_later(0, self._plan)

    def _plan(self) -> None:
        pause_s = self._turns.tick()
        self._ok("planning")
        self._planning = asyncio.get_running_loop().call_later(pause_s, self._plan)

    def reread(self) -> None:
        """Refresh NVML before the next reading: the GPUs or their driver changed."""
        self._stale = True

    async def read_gpus(self) -> None:
        """Read the GPUs now and notify all subscribers."""
        async with self._reading:
            await self._read_gpus()

    async def _read_gpus(self) -> None:
        if self._stale:
            self._stale = False
            await self._nvml.refresh()
        reading = await self._nvml.read()
        self._gpus.take(reading, self._clock.monotonic_ns(), self._clock.unix_s())
        self._keeper.apply(self._gpus.seen())
        urgent = self._watch.look(reading)
        self._pace = next_pace(self._pace, self._last_reading, reading, urgent)
        self._last_reading = reading
        self._ok("gpus")

    async def _gpu_loop(self) -> None:
        settings = self._settings().nvml
        while True:
            busy = bool(self._keeper.opens()) or self._gpus.error is not None
            ordinary_s = settings.interval_s if busy else settings.idle_interval_s
            await asyncio.sleep(interval_s(self._pace, ordinary_s, settings.burst_interval_s))
            with self._surviving_limits("reading the GPUs"):
                await self.read_gpus()

    async def _housekeeping_loop(self) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            self._keeper.adopt_claims()
            self._keeper.remove_leftovers()
            with self._surviving_limits("figures of the host"):
                self._views.sample()
            self._ok("housekeeping")
            if self._alive():
                self._notify("WATCHDOG=1")

    @contextlib.contextmanager
    def _surviving_limits(self, what: str) -> Iterator[None]:
        """Log a lack of file descriptors or memory and continue: the next round may have some."""
        try:
            yield
        except OSError as error:
            if error.errno not in AT_A_LIMIT:
                raise
            self._seldom.warning("%s: %s", what, error)

    def _alive(self) -> bool:
        """Every loop has come round in its time; the slowest one decides."""
        settings = self._settings()
        allowed_s = {
            "planning": 10 * max(1.0, settings.planner.idle_tick_ms / 1000),
            # A driver that hangs costs one deadline, then the pause before the next reader.
            "gpus": 2 * (settings.nvml.idle_interval_s + settings.nvml.deadline_s)
            + NVML_START_S
            + WATCHDOG_SLACK_S
            + self._held_up_s(),
        }
        now_s = self._clock.unix_s()
        late = [
            name
            for name, limit_s in allowed_s.items()
            if now_s - self._views.loops.get(name, now_s) > limit_s
        ]
        if late:
            log.error("watchdog ping withheld: stalled: %s", ", ".join(late))
        return not late
