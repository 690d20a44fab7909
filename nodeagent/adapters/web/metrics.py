"""/metrics over HTTP or HTTPS, from cached figures: a scrape never touches NVML or a tenant.

A server of its own in the daemon's event loop instead of a thread per scrape. /healthz and /readyz
are here, too, and ask nobody who they are: probes cannot.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nodeagent.adapters.web.probes import PATHS, health
from nodeagent.ports.views import NodeView
from sluicecommon.prometheus import OPENMETRICS, TEXT, wants_openmetrics
from sluicecommon.web.server import Answer, Certificate, WebServer

__all__ = ["Access", "Certificate", "MetricsServer"]


@dataclass(frozen=True, slots=True)
class Access:
    """Who may scrape: anybody, or whoever brings one of these."""

    bearer_token: str = ""
    basic: str = ""
    """USER:PASSWORD."""

    def allows(self, header: str) -> bool:
        if not self.bearer_token and not self.basic:
            return True
        scheme, _, given = header.strip().partition(" ")
        wanted = ""
        if scheme.lower() == "bearer":
            wanted = self.bearer_token
        elif scheme.lower() == "basic" and self.basic:
            wanted = base64.b64encode(self.basic.encode()).decode()
        return bool(wanted) and hmac.compare_digest(given.strip().encode(), wanted.encode())


ANYBODY: Final = Access()


class MetricsServer(WebServer):
    def __init__(
        self,
        host: str,
        port: int,
        view: Callable[[], NodeView],
        render: Callable[[bool], bytes],
        now_unix_s: Callable[[], float],
        access: Access = ANYBODY,
        certificate: Certificate | None = None,
    ) -> None:
        """`render` answers the page, in OpenMetrics when True."""
        self._view = view
        self._render = render
        self._now_unix_s = now_unix_s
        self._access = access
        super().__init__("metrics.listen", (host, port), self._page, certificate)

    def _page(self, path: bytes, headers: Mapping[str, str]) -> Answer:
        if path in PATHS:
            return health(self._view().loops, self._now_unix_s(), path)
        if not self._access.allows(headers.get("authorization", "")):
            return Answer(
                "401 Unauthorized",
                b"a token or a password is needed\n",
                headers={"WWW-Authenticate": 'Basic realm="sluice"'},
            )
        if path == b"/metrics":
            openmetrics = wants_openmetrics(headers.get("accept", ""))
            return Answer("200 OK", self._render(openmetrics), OPENMETRICS if openmetrics else TEXT)
        return Answer("404 Not Found", b"see /metrics\n")
