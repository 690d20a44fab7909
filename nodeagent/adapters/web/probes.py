"""/healthz and /readyz, on a listener of their own where one is set: what takes /metrics away
from Prometheus must not get the pod restarted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.ports.views import LoopView
from sluicecommon.web.server import Answer, WebServer

HEALTHY_SILENCE_S: Final = 10.0
"""A loop that has not come round for this long makes /healthz fail."""
PATHS: Final = (b"/healthz", b"/readyz")


def health(loops: Sequence[LoopView], now_s: float, path: bytes) -> Answer:
    """The same for both, but that a daemon without a first round is alive and not ready."""
    silent = [loop.name for loop in loops if now_s - loop.last_ok_unix_s > HEALTHY_SILENCE_S]
    if silent:
        return Answer("503 Service Unavailable", f"silent: {', '.join(silent)}\n".encode())
    if path == b"/readyz" and not loops:
        return Answer("503 Service Unavailable", b"starting\n")
    return Answer("200 OK", b"ok\n")


class ProbeServer(WebServer):
    """Asks nobody who they are: probes cannot."""

    def __init__(
        self,
        address: tuple[str, int],
        loops: Callable[[], Sequence[LoopView]],
        now_unix_s: Callable[[], float],
    ) -> None:
        def answer(path: bytes, _headers: Mapping[str, str]) -> Answer:
            if path in PATHS:
                return health(loops(), now_unix_s(), path)
            return Answer("404 Not Found", b"see /healthz, /readyz\n")

        super().__init__("metrics.probes", address, answer)
