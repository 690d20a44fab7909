#!/bin/bash
# Renews what is made of the one source of alerts and dashboards: the queue's dashboard, and the chart's copies
# (Helm reads nothing outside of the chart). A test says when this has to be run. usage: monitoring.sh
set -euo pipefail
cd "$(dirname "$0")"
python3 dashboard.py >grafana/sluice-queue.json
for file in prometheus/sluice-alerts.yaml grafana/*.json; do
	install -m 0644 "$file" "helm/sluice/files/${file##*/}"
done
