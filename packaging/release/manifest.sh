#!/bin/bash
# Writes DEST/sluice.yaml, the chart rendered for an install without helm. Without helm, and without Go to build it, none.
# usage: manifest.sh DEST
set -euo pipefail
dest=${1:?usage: manifest.sh DEST}
dest=$(realpath -- "$dest")
cd "$(dirname "$0")/../.."
rm -f "$dest/sluice.yaml"
if ! helm=$(packaging/fetch/helm-tool.sh); then
	echo "packages: no sluice.yaml: that needs helm" >&2
	exit 0
fi
packaging/generate/static.sh "$helm" >"$dest/sluice.yaml.new"
mv "$dest/sluice.yaml.new" "$dest/sluice.yaml"
