"""Handles the answer to a write of a Workload's admission checks by a check controller of ours: the
book takes in the Workload, and the controller reconciles it again."""

from __future__ import annotations

from collections.abc import Callable

from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, key_of
from queuecontroller.state.shell import Shell

Stored = Callable[[Document, Document], None]
"""Is called after each write of a Workload, with it as it was and as it is now."""


class AnswersStored:
    def __init__(
        self, shell: Shell, mirror: Mirror, stored: Stored, look_again: Callable[[str], None]
    ) -> None:
        """`look_again` queues a Workload, by its key, for the checks' controller."""
        self._shell = shell
        self._mirror = mirror
        self._stored = stored
        self._look_again = look_again

    def __call__(self, before: Document, found: Document, is_news: bool) -> None:
        key = key_of(found)
        if is_news:
            self._shell.step(
                "checked", lambda book, now_ns: self._mirror.workload(key, found, now_ns)
            )
        self._stored(before, found)
        self._look_again(key)
