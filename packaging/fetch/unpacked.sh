#!/bin/bash
# Unpacks Debian's packages into a directory: no service of theirs starts, and nothing is installed.
# usage: unpacked.sh DIRECTORY PACKAGE…
set -euo pipefail
directory=$(realpath -m "$1")
shift
command -v apt-get >/dev/null || { echo "$1: not installed, and no apt-get to get it with" >&2; exit 1; }
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
[ "$(id -u)" != 0 ] || apt-get update -qq
cd "$place"
apt-get download -qq "$@"
for deb in *.deb; do dpkg-deb -x "$deb" "$directory"; done
