#!/bin/bash
# Prints the path of axe-core's script (accessibility rules, MPL-2.0), for tests alone: out of its package on npm, pinned by
# version and digest, kept in build/tools. Nothing of it is installed or shipped.
set -euo pipefail
cd "$(dirname "$0")/../.."
version=4.14.1
digest=29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c
tool=$PWD/build/tools/axe-core-$version.js
if [ ! -e "$tool" ]; then
	command -v npm >/dev/null || packaging/fetch/tools.sh npm=npm >&2
	place=$(mktemp -d)
	trap 'rm -rf "$place"' EXIT
	(cd "$place" && npm pack --silent "axe-core@$version" >/dev/null && tar -xzf axe-core-*.tgz package/axe.min.js)
	echo "$digest  $place/package/axe.min.js" | sha256sum --check --quiet >&2
	mkdir -p build/tools
	install -m 644 "$place/package/axe.min.js" "$tool"
fi
echo "$tool"
