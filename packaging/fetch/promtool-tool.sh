#!/bin/bash
# Prints the path of promtool: the one on the path, or Debian's, taken out of its package into build/tools, because
# installing the package would start a server.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v promtool && exit 0
tool=$PWD/build/tools/promtool
if [ ! -x "$tool" ]; then
	place=$(mktemp -d)
	trap 'rm -rf "$place"' EXIT
	packaging/fetch/unpacked.sh "$place" prometheus
	mkdir -p build/tools
	install -m 755 "$place/usr/bin/promtool" "$tool"
fi
echo "$tool"
