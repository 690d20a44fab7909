"""/metrics, /healthz and /readyz over HTTP, in the controller's own event loop.

/healthz fails when a loop stalls, so that the kubelet restarts the controller; /readyz fails while
the controller does not schedule. Probes may have their own listener, without /metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

from sluicecommon.prometheus import TEXT
from sluicecommon.web.answers import Answer
from sluicecommon.web.get_server import GetServer

SCRAPE_S: Final = 0.25
"""Scrapes within this time share one text."""
HEALTHY_SILENCE_S: Final = 30.0
"""A loop that completes no round for so long makes /healthz fail. The longest step, reconsidering
100,000 workloads after an edit of a queue, takes seconds."""


class Serving(Protocol):
    """The state of the controller that probes report."""

    @property
    def why_not_ready(self) -> str:
        """Empty while the controller schedules."""

    def silent_loops(self, seconds: float) -> list[str]:
        """Names of the loops that have completed no round for so long."""


class HttpServer(GetServer):
    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        shell: Serving,
        metrics: Callable[[], bytes] | None,
    ) -> None:
        """`setting` names the address in messages; without `metrics` only probes are served."""
        super().__init__(setting, address, self._page)
        self._shell = shell
        self._metrics = metrics
        self._metrics_text = b""
        self._metrics_at_s = -SCRAPE_S

    def _page(self, path: str, _headers: Mapping[str, str]) -> Answer:
        if path == "/metrics" and self._metrics is not None:
            return Answer(200, self._scrape(self._metrics), TEXT)
        if path == "/healthz":
            silent = self._shell.silent_loops(HEALTHY_SILENCE_S)
            return _verdict(f"silent: {', '.join(silent)}" if silent else "")
        if path == "/readyz":
            return _verdict(self._shell.why_not_ready)
        return Answer(404, b"see /metrics, /healthz, /readyz\n")

    def _scrape(self, metrics: Callable[[], bytes]) -> bytes:
        """The text of /metrics, which costs tens of milliseconds and is cached for SCRAPE_S."""
        now_s = monotonic()
        if now_s - self._metrics_at_s >= SCRAPE_S:
            self._metrics_text, self._metrics_at_s = metrics(), now_s
        return self._metrics_text


def _verdict(wrong: str) -> Answer:
    if wrong:
        return Answer(503, f"{wrong}\n".encode())
    return Answer(200, b"ok\n")
