"""Work of each side: processor time and memory of the API server, etcd and the controller, and the
requests that the API server counted."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.control_plane import ControlPlane

TICKS = os.sysconf("SC_CLK_TCK")
WRITES = ("POST", "PUT", "PATCH", "DELETE")
CONVERSIONS = "apiserver_crd_conversion_webhook_duration_seconds_count"
"""The API server keeps a cache of each served version: for one that is not stored it asks about every change."""
COUNTED = (
    "apiserver_request_total{",
    "apiserver_admission_webhook_request_total{",
    f"{CONVERSIONS}{{",
)
_SAMPLE = re.compile(r"^(\w+)\{(.*)\} ([0-9.e+-]+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mib(pid: int, what: str = "VmRSS") -> float:
    """`what`: VmRSS, or VmHWM, the most that it was."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) / 1024


@dataclass(frozen=True)
class Work:
    """Between two looks."""

    cpu_s: Mapping[str, float]
    """CPU time in seconds, by side."""
    writes: Mapping[str, float] = field(default_factory=dict)
    """Writes by request, as `PATCH workloads/status`."""
    webhook_calls: Mapping[str, float] = field(default_factory=dict)

    def __sub__(self, other: Work) -> Work:
        return Work(
            less(self.cpu_s, other.cpu_s),
            less(self.writes, other.writes),
            less(self.webhook_calls, other.webhook_calls),
        )


def less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    found = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in found.items() if value}


def look(plane: ControlPlane, controller: int | None = None) -> Work:
    """`controller`: its process, where there is one."""
    pids = {"apiserver": plane.pid("kube-apiserver"), "etcd": plane.pid("etcd")}
    if controller is not None:
        pids["controller"] = controller
    writes: dict[str, float] = {}
    calls: dict[str, float] = {}
    for line in plane.api.get("/metrics").splitlines():
        if not line.startswith(COUNTED):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[2]))
        if match[1] == "apiserver_request_total" and labels["verb"] in WRITES:
            part = "/".join(filter(None, (labels["resource"], labels["subresource"])))
            name = f"{labels['verb']} {part}"
            writes[name] = writes.get(name, 0.0) + float(match[3])
        elif match[1] == "apiserver_admission_webhook_request_total":
            name = f"{labels['operation']} {labels['name'].partition('.')[0]}"
            calls[name] = calls.get(name, 0.0) + float(match[3])
        elif match[1] == CONVERSIONS:
            name = f"convert {labels['crd_name'].partition('.')[0]}"
            calls[name] = calls.get(name, 0.0) + float(match[3])
    return Work({name: cpu_s(pid) for name, pid in pids.items()}, writes, calls)


def each(found: Mapping[str, float], jobs: int, unit: float = 1.0) -> dict[str, float]:
    """Figures per job, rounded for people to read."""
    return {name: round(value * unit / jobs, 3) for name, value in sorted(found.items())}
