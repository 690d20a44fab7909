#!/bin/bash
# Renews what is made of the one source of alerts, dashboards and values: the queue's dashboard, and the chart's copies
# (a template reads nothing outside of the chart, and of the values only those that hold). A test says when this has to be run. usage: monitoring.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python3 generate/dashboard.py >grafana/sluice-queue.json
for file in prometheus/sluice-alerts.yaml grafana/*.json; do
	install -m 0644 "$file" "helm/sluice/files/${file##*/}"
done
install -m 0644 helm/sluice/values.yaml helm/sluice/files/values.yaml
