#!/bin/bash
# Generates the files that `helm install` and `kubectl apply` read, each from one source; git ignores them.
#   packaging/helm/sluice/files: copies (a template can read only files of the chart, and not the default values),
#     and lists from the code's tables
#   packaging/grafana/sluice-queue.json: the queue's dashboard
#   packaging/kubernetes: CRDs and RBAC for an install without the chart; with HELM also the rendered chart, sluice.yaml
# An unchanged file is not rewritten, and every write is atomic. usage: [PYTHON=python3] chart.sh [HELM]
set -euo pipefail
helm=${1:-}
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
mkdir -p "$new"/{helm/sluice/files,grafana,kubernetes}
"$python" generate/dashboard.py >"$new/grafana/sluice-queue.json"
cp prometheus/sluice-alerts.yaml grafana/sluice-node.json "$new/grafana/sluice-queue.json" helm/sluice/values.yaml "$new/helm/sluice/files"
"$python" generate/crds.py >"$new/kubernetes/kueue-crds.yaml"
"$python" generate/crds.py --compact >"$new/helm/sluice/files/kueue-crds.yaml"
"$python" generate/rights.py >"$new/kubernetes/queue-rights.yaml"
"$python" generate/rights.py --beside >"$new/kubernetes/queue-rights-beside.yaml"
"$python" generate/rights.py --users | tee "$new/kubernetes/kueue-user-roles.yaml" >"$new/helm/sluice/files/kueue-user-roles.yaml"
"$python" generate/rights.py --rules >"$new/helm/sluice/files/queue-rules.yaml"
"$python" generate/vendors.py >"$new/helm/sluice/files/vendor-resources.yaml"
put() {
	(cd "$new" && find . -type f -printf '%P\n') | while read -r file; do
		cmp -s "$new/$file" "$file" && continue
		mkdir -p "${file%/*}"
		install -m 0644 "$new/$file" "$file.new"
		mv "$file.new" "$file"
	done
}
put
if [ -n "$helm" ]; then
	generate/static.sh "$helm" >"$new/kubernetes/sluice.yaml"
	put
fi
