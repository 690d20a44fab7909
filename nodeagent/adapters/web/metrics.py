"""/metrics over HTTP or HTTPS, from cached figures: a scrape calls neither NVML nor a tenant.

It is served in the daemon's event loop. /healthz and /readyz are served here as well, without
authentication, because the kubelet's probes send no credentials.
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
from sluicecommon.web.answers import Answer
from sluicecommon.web.get_server import GetServer
from sluicecommon.web.listener import Certificate

__all__ = ["Access", "Certificate", "MetricsServer"]


@dataclass(frozen=True, slots=True)
class Access:
    """The credentials of scrapers; every client may scrape while both are empty."""

    bearer_token: str = ""
    basic: str = ""
    """USER:PASSWORD."""

    def allows(self, header: str) -> bool:
        """True if the header Authorization has one of the credentials."""
        if not self.bearer_token and not self.basic:
            return True
        scheme, _, given = header.strip().partition(" ")
        wanted = ""
        if scheme.lower() == "bearer":
            wanted = self.bearer_token
        elif scheme.lower() == "basic" and self.basic:
            wanted = base64.b64encode(self.basic.encode()).decode()
        return bool(wanted) and hmac.compare_digest(_bytes(given.strip()), _bytes(wanted))


def _bytes(text: str) -> bytes:
    # aiohttp decodes bytes of a header that are not UTF-8 to surrogates.
    return text.encode("utf-8", "surrogateescape")


EVERYONE: Final = Access()


class MetricsServer(GetServer):
    def __init__(
        self,
        host: str,
        port: int,
        view: Callable[[], NodeView],
        render: Callable[[bool], bytes],
        now_unix_s: Callable[[], float],
        access: Access = EVERYONE,
        certificate: Certificate | None = None,
    ) -> None:
        """`render` returns the text of /metrics, in the OpenMetrics format if it is given True."""
        self._view = view
        self._render = render
        self._now_unix_s = now_unix_s
        self._access = access
        super().__init__("metrics.listen", (host, port), self._page, certificate)

    def _page(self, path: str, headers: Mapping[str, str]) -> Answer:
        if path in PATHS:
            return health(self._view().loops, self._now_unix_s(), path)
        if not self._access.allows(headers.get("authorization", "")):
            return Answer(
                401,
                b"a bearer token or a password is required\n",
                headers={"WWW-Authenticate": 'Basic realm="sluice"'},
            )
        if path == "/metrics":
            openmetrics = wants_openmetrics(headers.get("accept", ""))
            return Answer(200, self._render(openmetrics), OPENMETRICS if openmetrics else TEXT)
        return Answer(404, b"see /metrics\n")
