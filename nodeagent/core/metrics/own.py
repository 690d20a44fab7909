"""Our own metrics of one node, from its view."""

from __future__ import annotations

from collections.abc import Mapping

from nodeagent.core.metrics import catalogue as m
from nodeagent.core.metrics.histogram import Histogram
from nodeagent.ports.views import NodeView
from sluicecommon.metric import Metric
from sluicecommon.prometheus import Exposition


def fill(samples: Exposition, view: NodeView, histograms: Mapping[Metric, Histogram]) -> None:
    m.NODE.fill(samples, view, ())
    for metric, found in view.counters.items():
        if isinstance(found, Mapping):
            for label, value in found.items():
                samples.add(metric, (label,), value)
        else:
            samples.add(metric, (), found)
    for metric, histogram in histograms.items():
        samples.add_histogram(metric, (), histogram)
    if view.queue is not None:
        m.QUEUE.fill(samples, view.queue, ())
    if view.host is not None:
        m.HOST.fill(samples, view.host, ())
    for gpu in view.gpus:
        m.UNIT.fill(samples, gpu, (gpu.uuid, str(gpu.index)))
    for reading in view.readings:
        m.CARD.fill(samples, reading, (reading.uuid, str(reading.index)))
    for grant in view.grants:
        m.GRANT.fill(samples, grant, (grant.grant, grant.name))
        for device in grant.devices:
            m.DEVICE.fill(samples, device, (grant.grant, grant.name, device.gpu))
