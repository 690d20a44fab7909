"""/healthz and /readyz, on their own listener where one is configured, so that a failure of the
listener of /metrics does not restart the pod."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nodeagent.ports.views import LoopView
from sluicecommon.web.answers import Answer
from sluicecommon.web.get_server import GetServer

HEALTHY_SILENCE_S: Final = 10.0
"""A loop that completes no round for so long makes the probes fail."""
PATHS: Final = ("/healthz", "/readyz")


def health(loops: Sequence[LoopView], now_s: float, path: str) -> Answer:
    """The answer of both probes; a daemon before its first round is healthy and not ready."""
    silent = [loop.name for loop in loops if now_s - loop.last_ok_unix_s > HEALTHY_SILENCE_S]
    if silent:
        return Answer(503, f"silent: {', '.join(silent)}\n".encode())
    if path == "/readyz" and not loops:
        return Answer(503, b"starting\n")
    return Answer(200, b"ok\n")


class ProbeServer(GetServer):
    """The listener for probes alone; it authenticates no client."""

    def __init__(
        self,
        address: tuple[str, int],
        loops: Callable[[], Sequence[LoopView]],
        now_unix_s: Callable[[], float],
    ) -> None:
        def answer(path: str, _headers: Mapping[str, str]) -> Answer:
            if path in PATHS:
                return health(loops(), now_unix_s(), path)
            return Answer(404, b"see /healthz, /readyz\n")

        super().__init__("metrics.probes", address, answer)
