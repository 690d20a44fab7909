"""/metrics, /healthz and /readyz over HTTP, in the controller's own event loop.

/healthz says that the loops come round (restart it if not); /readyz says that it decides. Probes
may have a listener of their own, without /metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Final, Protocol

from sluicecommon.prometheus import TEXT
from sluicecommon.web.server import Answer, WebServer

SCRAPE_S: Final = 0.25
HEALTHY_SILENCE_S: Final = 30.0
"""A loop that has not come round for this long makes /healthz fail; the longest step, taking over
100,000 workloads after an edit of a queue, takes seconds."""


class Serving(Protocol):
    """Who is asked how it is."""

    @property
    def why_not_ready(self) -> str: ...
    def silent_loops(self, seconds: float) -> list[str]: ...


class HttpServer(WebServer):
    def __init__(
        self,
        setting: str,
        address: tuple[str, int],
        shell: Serving,
        metrics: Callable[[], bytes] | None,
    ) -> None:
        """`setting` names the address for messages; without `metrics` it is for probes alone."""
        super().__init__(setting, address, self._page)
        self._shell = shell
        self._metrics = metrics
        self._metrics_text = b""
        self._metrics_at_s = -SCRAPE_S

    def _page(self, path: bytes, _headers: Mapping[str, str]) -> Answer:
        if path == b"/metrics" and self._metrics is not None:
            return Answer("200 OK", self._scrape(self._metrics), TEXT)
        if path == b"/healthz":
            silent = self._shell.silent_loops(HEALTHY_SILENCE_S)
            return _verdict(f"silent: {', '.join(silent)}" if silent else "")
        if path == b"/readyz":
            return _verdict(self._shell.why_not_ready)
        return Answer("404 Not Found", b"see /metrics, /healthz, /readyz\n")

    def _scrape(self, metrics: Callable[[], bytes]) -> bytes:
        """The same text for all who ask within a moment: it costs tens of milliseconds."""
        now_s = monotonic()
        if now_s - self._metrics_at_s >= SCRAPE_S:
            self._metrics_text, self._metrics_at_s = metrics(), now_s
        return self._metrics_text


def _verdict(wrong: str) -> Answer:
    if wrong:
        return Answer("503 Service Unavailable", f"{wrong}\n".encode())
    return Answer("200 OK", b"ok\n")
