#!/bin/bash
# Prints the path of helm: the one on the path, or one built from its Go module, once, into build/tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=v3.16.4
command -v helm && exit 0
tool=$PWD/build/tools/helm
if [ ! -x "$tool" ]; then
	command -v go >/dev/null || { echo "helm: neither helm nor go is installed" >&2; exit 1; }
	echo "packages: building helm $version (minutes)" >&2
	GOBIN=$PWD/build/tools nice go install "helm.sh/helm/v3/cmd/helm@$version" >build/helm.log 2>&1 || { cat build/helm.log >&2; exit 1; }
fi
echo "$tool"
