"""Writes the Grafana dashboard, packaging/helm/sluice/files/dashboard.json, to standard output.

Panels are a table here, because a dashboard of 600 lines of JSON is not read by anybody.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

PANELS: Final = (
    ("GPU time by grant", "sluice_grant_sm_used_ratio", "{{name}} {{grant}}", "percentunit"),
    ("Share given by GPU", "sluice_gpu_sm_granted_ratio", "{{instance}} {{index}}", "percentunit"),
    ("GPU utilization", "sluice_gpu_utilization_ratio", "{{instance}} {{index}}", "percentunit"),
    ("Memory used by grant", "sluice_grant_memory_used_bytes", "{{name}} {{grant}}", "bytes"),
    ("Memory granted by GPU", "sluice_gpu_memory_granted_bytes", "{{instance}} {{index}}", "bytes"),
    ("Waiting for one's share", "rate(sluice_grant_throttled_seconds_total[1m])", "{{name}}", "s"),
    ("Allocations refused", "rate(sluice_grant_allocations_denied_total[5m])", "{{name}}", "ops"),
    ("GPUs offered", "sum(sluice_gpu_healthy)", "healthy", "short"),
    ("Grants by GPU", "sluice_gpu_grants", "{{instance}} {{index}}", "short"),
    ("Age of the driver's reading", "sluice_nvml_reading_age_seconds", "{{instance}}", "s"),
    ("Pending workloads", "kueue_pending_workloads", "{{cluster_queue}} {{status}}", "short"),
    ("Running workloads", "kueue_admitted_active_workloads", "{{cluster_queue}}", "short"),
    ("Nodes", "sluice_queue_nodes", "{{state}}", "short"),
    (
        "Wait for admission, p90",
        "histogram_quantile(0.9, sum by (le, cluster_queue)"
        " (rate(kueue_admission_wait_time_seconds_bucket[15m])))",
        "{{cluster_queue}}",
        "s",
    ),
)
"""Title, expression, legend, unit."""


def panel(at: int, title: str, expression: str, legend: str, unit: str) -> dict[str, Any]:
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": 12 * (at % 2), "y": 8 * (at // 2), "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "sluice",
        "title": "Sluice",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]
        },
        "panels": [panel(at, *row) for at, row in enumerate(PANELS)],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    print()
