#!/bin/bash
# Prints the path of promtool: the one on the path, or Debian's, taken out of its package into build/tools; the package
# itself would bring a server that starts.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v promtool && exit 0
tool=$PWD/build/tools/promtool
if [ ! -x "$tool" ]; then
	command -v apt-get >/dev/null || { echo "promtool: not installed, and no apt-get to get it with" >&2; exit 1; }
	place=$(mktemp -d)
	trap 'rm -rf "$place"' EXIT
	[ "$(id -u)" != 0 ] || apt-get update -qq
	(cd "$place" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb root)
	mkdir -p build/tools
	install -m 755 "$place/root/usr/bin/promtool" "$tool"
fi
echo "$tool"
