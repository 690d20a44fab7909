"""/metrics and the probes, by their settings."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from nodeagent.adapters.web.metrics import Access, Certificate, MetricsServer
from nodeagent.adapters.web.probes import ProbeServer
from nodeagent.assembly.ground import Unavailable
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.clock import Clock
from nodeagent.ports.views import NodeView
from nodeagent.settings.daemon import MetricsSettings, split_address
from nodeagent.shell.api.scrape import Scrape, dcgm_wanted
from nodeagent.shell.api.views import Views
from nodeagent.shell.node import Endpoint
from sluicecommon.metric import Metric


def make_web(
    settings: MetricsSettings,
    views: Views,
    histograms: Mapping[Metric, Histogram],
    clock: Clock,
) -> list[Endpoint]:
    """Raises Unavailable when a file it names cannot be read."""
    servers: list[Endpoint] = []
    if settings.enabled:
        servers.append(make_metrics(settings, views.whole, histograms, clock))
    if settings.probes:
        address = split_address(settings.probes)
        servers.append(ProbeServer(address, views.loop_views, clock.unix_s))
    return servers


def make_metrics(
    settings: MetricsSettings,
    view: Callable[[], NodeView],
    histograms: Mapping[Metric, Histogram],
    clock: Clock,
) -> MetricsServer:
    name = settings.node_name or socket.gethostname()
    certificate = None
    key = "tls_certificate"
    try:
        if settings.tls_certificate:
            certificate = Certificate(Path(settings.tls_certificate), Path(settings.tls_key))
        key = "bearer_token_file"
        token = secret(settings.bearer_token_file)
        key = "basic_password_file"
        password = secret(settings.basic_password_file)
    except (OSError, ValueError) as error:
        raise Unavailable(f"metrics.{key}: {error}") from error
    return MetricsServer(
        *split_address(settings.listen),
        view,
        Scrape(settings, view, histograms, name, dcgm_wanted(settings)),
        clock.unix_s,
        Access(token, f"{settings.basic_user}:{password}" if password else ""),
        certificate,
    )


def secret(path: str) -> str:
    """One line of a file. Raises OSError; ValueError when there is nothing in it."""
    if not path:
        return ""
    text = Path(path).read_text(encoding="utf-8").strip()
    if not text:
        raise ValueError(f"{path} is empty")
    return text
