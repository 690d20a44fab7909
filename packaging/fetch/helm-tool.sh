#!/bin/bash
# Prints the path of helm: the one on the path, or one built from its Go module. It is built once for all checkouts of a
# user (some two minutes of a processor, and the download), and copied to build/tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=v3.16.4
command -v helm && exit 0
tool=$PWD/build/tools/helm
cache=${XDG_CACHE_HOME:-$HOME/.cache}/sluice/helm-$version
if [ ! -x "$tool" ]; then
	mkdir -p build/tools "$cache"
	exec 9>"$cache.lock"
	flock 9 # of two at a time one builds it, and the other waits for it
	if [ ! -x "$cache/helm" ]; then
		go=$(command -v go || PATH=/usr/local/go/bin command -v go) || { echo "helm: neither helm nor go is installed" >&2; exit 1; }
		echo "helm: building $version (minutes)" >&2
		GOBIN=$cache nice "$go" install "helm.sh/helm/v3/cmd/helm@$version" >build/helm.log 2>&1 || { cat build/helm.log >&2; exit 1; }
	fi
	install -m 755 "$cache/helm" "$tool"
fi
echo "$tool"
