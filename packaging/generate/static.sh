#!/bin/bash
# Renders the chart for an install without helm: packaging/kubernetes/sluice.yaml of `make chart`. usage: static.sh [HELM]
set -euo pipefail
cd "$(dirname "$0")/../.."
helm=${1:-$(packaging/fetch/helm-tool.sh)}
cat <<'HEAD'
# Rendered from packaging/helm/sluice by packaging/generate/static.sh; do not edit. Before it is applied:
#   kubectl create namespace sluice && kubectl label namespace sluice pod-security.kubernetes.io/enforce=privileged
#   kubectl -n sluice create secret generic sluice-queue --from-file=tls.crt --from-file=tls.key --from-file=ca.crt
HEAD
"$helm" template sluice packaging/helm/sluice --namespace sluice --kube-version 1.31.0 \
	--set queue.tlsSecret=sluice-queue --no-hooks
