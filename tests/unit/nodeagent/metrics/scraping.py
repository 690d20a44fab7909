"""A page of metrics as it is scraped."""

from __future__ import annotations

from typing import Any

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics.histogram import WAIT_BOUNDS_S, WORK_BOUNDS_S, Histogram
from nodeagent.ports.views import NodeView
from nodeagent.settings.daemon import MetricsSettings
from nodeagent.shell.api.scrape import Scrape
from sluicecommon.metric import Metric
from tests.unit.nodeagent.metrics.views import node


def scrape(view: NodeView | None = None, openmetrics: bool = False, **settings: Any) -> str:
    seen = view or node()
    made = MetricsSettings(**settings)
    page = Scrape(made, lambda: seen, histograms(), "node-1", dcgm=made.dcgm == "on")
    return page(openmetrics).decode()


def histograms() -> dict[Metric, Histogram]:
    wait, binding = Histogram(WAIT_BOUNDS_S), Histogram(WORK_BOUNDS_S)
    for seconds in (0.0005, 0.5, 90.0, 1e6):
        wait.observe(seconds)
    binding.observe(0.002)
    return {m.GRANT_WAIT: wait, m.BINDING_DURATION: binding}
