"""The text of one scrape: Sluice's own metrics, and other exporters' where switched on."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics import dcgm as dcgm_metrics
from nodeagent.core.metrics import own as own_metrics
from nodeagent.core.metrics.hami import Filler
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.views import NodeView
from nodeagent.settings.daemon import MetricsSettings
from sluicecommon.metric import Metric
from sluicecommon.prometheus import Exposition

DCGM_ADDRESS: Final = ("127.0.0.1", 9400)
DCGM_WAIT_S: Final = 0.2
REASONS: Final = ("cap", "duplicate")


class Scrape:
    def __init__(
        self,
        settings: MetricsSettings,
        view: Callable[[], NodeView],
        histograms: Mapping[Metric, Histogram],
        node_name: str,
        dcgm: bool,
    ) -> None:
        self._max_series = settings.max_series
        self._hami = settings.hami
        self._view = view
        self._histograms = histograms
        self._node_name = node_name
        spelt = settings.dcgm_hostname_label
        labels = ("Hostname", "hostname") if spelt == "both" else (spelt,)
        self._dcgm = dcgm_metrics.Names(node_name, labels) if dcgm else None
        self._dropped: Counter[str] = Counter()

    def __call__(self, openmetrics: bool = False) -> bytes:
        view = self._view()
        samples = Exposition(m.CATALOGUE, self._max_series)
        for reason in REASONS:
            samples.add(m.SERIES_DROPPED, (reason,), self._dropped[reason])
        own_metrics.fill(samples, view, self._histograms)
        if self._dcgm is not None:
            dcgm_metrics.fill(samples, view, self._dcgm)
        if self._hami != "off":
            Filler(samples, self._node_name, legacy=self._hami == "legacy").fill(view)
        self._dropped += samples.dropped  # The next scrape has it.
        return samples.text(openmetrics)


def dcgm_wanted(settings: MetricsSettings) -> bool:
    """True if DCGM's metric names are wanted; `auto` checks for a dcgm-exporter on this host."""
    if settings.dcgm != "auto":
        return settings.dcgm == "on"
    try:
        socket.create_connection(DCGM_ADDRESS, DCGM_WAIT_S).close()
    except OSError:
        return True
    return False
