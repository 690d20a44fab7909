"""/metrics and /healthz over HTTP, from cached figures: a scrape never touches NVML or a
tenant.

A server of its own in the daemon's event loop, forty lines instead of a thread per scrape: GET
only, one request per connection, 2 s to send it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nodeagent import metrics as m
from nodeagent.ports import NodeView

REQUEST_DEADLINE_S: Final = 2.0
LONGEST_REQUEST_BYTES: Final = 8 << 10
MOST_CLIENTS: Final = 32
HEALTHY_SILENCE_S: Final = 10.0
"""A loop that has not come round for this long makes /healthz fail."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.:/@ -]")


class NodeCollector:
    """A prometheus collector over the daemon's view of the node."""

    def __init__(self, view: Callable[[], NodeView]) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        view = self._view()
        samples = _Samples()
        samples.add(m.BUILD_INFO, (view.version,), 1)
        for loop in view.loops:
            samples.add(m.LOOP_LAST_OK, (loop.name,), loop.last_ok_unix_s)
        samples.add(m.GRANTS_WAITING, (), view.waiting)
        samples.add(m.NVML_AGE, (), view.reading_age_s)
        samples.add(m.NVML_RESTARTS, (), view.nvml_restarts_total)
        samples.add(m.TAMPERS, (), view.counters.get("tampers", 0))
        samples.add(m.REGISTRATIONS_DROPPED, (), view.counters.get("registrations_dropped", 0))
        for gpu in view.gpus:
            labels = (gpu.uuid, str(gpu.index))
            samples.add(m.GPU_INFO, (*labels, gpu.name, gpu.pci_bus_id or ""), 1)
            samples.add(m.GPU_HEALTHY, labels, int(gpu.health in ("healthy", "suspect")))
            samples.add(m.GPU_MEMORY, labels, gpu.memory_total_bytes)
            samples.add(m.GPU_MEMORY_USED, labels, gpu.memory_used_bytes)
            samples.add(m.GPU_MEMORY_GRANTED, labels, gpu.memory_granted_bytes)
            samples.add(m.GPU_SM_GRANTED, labels, gpu.share_granted_ratio)
            samples.add(m.GPU_UTILIZATION, labels, gpu.utilization_ratio)
            samples.add(m.GPU_TEMPERATURE, labels, gpu.temperature_celsius)
            samples.add(m.GPU_POWER, labels, gpu.power_watts)
            samples.add(m.GPU_GRANTS, labels, gpu.grants)
            samples.add(m.GPU_SLOTS, labels, gpu.slots)
        for grant in view.grants:
            who = (grant.grant, grant.name)
            info = (*who, grant.policy.value, grant.state, str(grant.uid))
            samples.add(m.GRANT_INFO, info, 1)
            samples.add(m.GRANT_PROCESSES, who, grant.processes)
            samples.add(m.GRANT_TAMPERS, who, grant.tamper_events_total)
            for device in grant.devices:
                labels3 = (*who, device.gpu)
                samples.add(m.GRANT_MEMORY_LIMIT, labels3, device.memory_limit_bytes)
                samples.add(m.GRANT_MEMORY_USED, labels3, device.memory_used_bytes)
                samples.add(m.GRANT_MEMORY_PEAK, labels3, device.memory_peak_bytes)
                samples.add(m.GRANT_SM_LIMIT, labels3, device.share_ratio)
                samples.add(m.GRANT_SM_USED, labels3, device.used_ratio)
                samples.add(m.GRANT_BUSY, labels3, device.busy_seconds_total)
                samples.add(m.GRANT_THROTTLED, labels3, device.throttled_seconds_total)
                samples.add(m.GRANT_LAUNCHES, labels3, device.launches_total)
                samples.add(m.GRANT_ALLOCATIONS, labels3, device.allocations_total)
                samples.add(m.GRANT_DENIED, labels3, device.denied_total)
        return samples.families()


class _Samples:
    """Collects samples by metric, in the order of the catalogue; what is not reported has no
    sample."""

    def __init__(self) -> None:
        self._by_metric: dict[m.Metric, list[tuple[Sequence[str], float]]] = {}

    def add(self, metric: m.Metric, labels: Sequence[str], value: float | None) -> None:
        if value is not None:
            safe = [_UNSAFE.sub("_", label)[:128] for label in labels]
            self._by_metric.setdefault(metric, []).append((safe, value))

    def families(self) -> Iterable[Metric]:
        for metric in m.CATALOGUE:
            make: Any = CounterMetricFamily if metric.kind is m.Kind.COUNTER else GaugeMetricFamily
            family = make(metric.name, metric.help, labels=metric.labels)
            for labels, value in self._by_metric.get(metric, []):
                family.add_metric(labels, value)
            yield family


def render(view: Callable[[], NodeView]) -> bytes:
    """The whole exposition."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(view))
    text: bytes = generate_latest(registry)
    return text


class MetricsServer:
    def __init__(
        self, host: str, port: int, view: Callable[[], NodeView], now_unix_s: Callable[[], float]
    ) -> None:
        self._address = (host, port)
        self._view = view
        self._now_unix_s = now_unix_s
        self._server: asyncio.Server | None = None
        self._clients = 0

    async def start(self) -> None:
        """Raises OSError when the address is taken."""
        self._server = await asyncio.start_server(
            self._serve, *self._address, limit=LONGEST_REQUEST_BYTES
        )

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            if self._clients > MOST_CLIENTS:
                return
            async with asyncio.timeout(REQUEST_DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = self._answer(head)
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
                    "Connection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass
        finally:
            self._clients -= 1
            with contextlib.suppress(ConnectionError):
                writer.close()

    def _answer(self, head: bytes) -> tuple[str, str, bytes]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        plain = "text/plain; charset=utf-8"
        if len(words) != 3 or words[0] != b"GET":
            return "405 Method Not Allowed", plain, b"GET only\n"
        path = words[1].split(b"?", 1)[0]
        if path == b"/metrics":
            return "200 OK", CONTENT_TYPE_LATEST, render(self._view)
        if path == b"/healthz":
            now_s = self._now_unix_s()
            silent = [
                loop.name
                for loop in self._view().loops
                if now_s - loop.last_ok_unix_s > HEALTHY_SILENCE_S
            ]
            if silent:
                return "503 Service Unavailable", plain, f"silent: {', '.join(silent)}\n".encode()
            return "200 OK", plain, b"ok\n"
        return "404 Not Found", plain, b"see /metrics\n"
