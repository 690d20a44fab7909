"""Writes the queue's Grafana dashboard, packaging/grafana/sluice-queue.json, to standard output.

Panels are a table here, because 600 lines of JSON cannot be reviewed.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

PANELS: Final = (
    (
        "Pending workloads",
        'sum by (cluster_queue, status) (kueue_pending_workloads{cluster_queue=~"$queue"})',
        "{{cluster_queue}} {{status}}",
        "short",
        "Active ones are looked at in the next cycle, inadmissible ones when something changes.",
    ),
    (
        "Running workloads",
        'sum by (cluster_queue) (kueue_admitted_active_workloads{cluster_queue=~"$queue"})',
        "{{cluster_queue}}",
        "short",
        "Admitted and not over.",
    ),
    (
        "Wait for admission, p90",
        "histogram_quantile(0.9, sum by (le, cluster_queue) (rate("
        'kueue_admission_wait_time_seconds_bucket{cluster_queue=~"$queue"}[$__rate_interval])))',
        "{{cluster_queue}}",
        "s",
        "From creation until admission; nine of ten wait less.",
    ),
    (
        "Quota held",
        "sum by (cluster_queue, flavor, resource) (kueue_cluster_queue_resource_reservation"
        '{cluster_queue=~"$queue"}) / sum by (cluster_queue, flavor, resource) '
        '(kueue_cluster_queue_nominal_quota{cluster_queue=~"$queue"})',
        "{{cluster_queue}} {{resource}} {{flavor}}",
        "percentunit",
        "Of the nominal quota; above 100 % it is borrowed.",
    ),
    (
        "Preempted",
        "sum by (preempting_cluster_queue, reason) "
        '(increase(kueue_preempted_workloads_total{preempting_cluster_queue=~"$queue"}'
        "[$__rate_interval]))",
        "for {{preempting_cluster_queue}}: {{reason}}",
        "short",
        "Workloads that made way, by the queue they made way for.",
    ),
    (
        "Nodes",
        "sum by (state) (sluice_queue_nodes)",
        "{{state}}",
        "short",
        "Away: its lease is over and nothing new starts there. Lost: silent for longer.",
    ),
    (
        "Pods given to nodes",
        "sum by (state) (sluice_queue_pods)",
        "{{state}}",
        "short",
        "Decided ones have a place and have not started.",
    ),
    (
        "GPU memory",
        "sum by (state) (sluice_queue_gpu_memory_bytes)",
        "{{state}}",
        "bytes",
        "Of connected nodes; outside is used by what is not queued.",
    ),
    (
        "Fragmentation",
        "max by (request, resource) (sluice_queue_gpu_fragmentation_ratio)",
        "{{request}} {{resource}}",
        "percentunit",
        "Part of what is free that a request of this size cannot use.",
    ),
    (
        "Quota and no room",
        "sum(sluice_queue_unplaced_workloads)",
        "workloads",
        "short",
        "Workloads with quota that no node can take now; sluice-queue explain shows why.",
    ),
    (
        "Time of a durable change, p99",
        "histogram_quantile(0.99, sum by (le) "
        "(rate(sluice_queue_commit_seconds_bucket[$__rate_interval])))",
        "p99",
        "s",
        "The disk under the controller's database.",
    ),
    (
        "Length of a cycle, p99",
        "histogram_quantile(0.99, sum by (le) "
        "(rate(kueue_admission_attempt_duration_seconds_bucket[$__rate_interval])))",
        "p99",
        "s",
        "In which the controller looks at one round of workloads.",
    ),
)
"""Title, expression, legend, unit, description."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
QUEUES: Final = "label_values(kueue_cluster_queue_info, cluster_queue)"


def panel(
    at: int, title: str, expression: str, legend: str, unit: str, description: str
) -> dict[str, Any]:
    return {
        "id": at + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": SOURCE,
        "gridPos": {"x": 8 * (at % 3), "y": 8 * (at // 3), "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": expression, "legendFormat": legend}],
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "sluice-queue",
        "title": "Sluice: queue",
        "tags": ["gpu", "sluice"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "label": "Data source",
                    "type": "datasource",
                    "query": "prometheus",
                },
                {
                    "name": "queue",
                    "label": "ClusterQueue",
                    "type": "query",
                    "datasource": SOURCE,
                    "query": {"query": QUEUES, "refId": "queue"},
                    "definition": QUEUES,
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                    "allValue": ".*",
                    "current": {"text": "All", "value": "$__all"},
                    "sort": 1,
                },
            ]
        },
        "panels": [panel(at, *row) for at, row in enumerate(PANELS)],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=1)
    print()
