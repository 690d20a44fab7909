"""The driver libraries this node has had since it booted: a job that still maps the one from before
an update has no foreign driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from nodeagent.ports.ledger import LedgerFull
from nodeagent.ports.processes import LibraryIdentity
from nodeagent.ports.watch import DriverLog

log = logging.getLogger(__name__)


class Drivers:
    def __init__(
        self, ledger: DriverLog, identify: Callable[[str], LibraryIdentity | None]
    ) -> None:
        self._ledger = ledger
        self._identify = identify
        self._seen = set(ledger.driver_files())

    def seen(self) -> frozenset[LibraryIdentity]:
        """Driver libraries that are installed now or were earlier."""
        return frozenset(self._seen)

    def identities(self, paths: Iterable[str]) -> frozenset[LibraryIdentity]:
        """Identities of the library files that exist now. Reads the disk: for a thread."""
        return frozenset(one for path in paths if (one := self._identify(path)) is not None)

    def remember(self, found: Iterable[LibraryIdentity]) -> None:
        """Raises LedgerLost."""
        for one in sorted(set(found) - self._seen, key=lambda one: (one.device, one.inode)):
            self._seen.add(one)
            try:
                self._ledger.store_driver_file(one)
            except LedgerFull as error:
                log.error("driver library not recorded, it is forgotten at a restart: %s", error)
