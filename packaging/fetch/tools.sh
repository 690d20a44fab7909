#!/bin/bash
# Installs what building and testing packages needs, and only that; `make build` and `make test` do without it.
# usage: tools.sh COMMAND-OR-FILE=PACKAGE…
set -euo pipefail
need=()
for pair in "$@"; do
	[ -e "${pair%%=*}" ] || command -v "${pair%%=*}" >/dev/null || need+=("${pair#*=}")
done
[ ${#need[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "packages: missing: ${need[*]} (as root on Debian: apt-get install ${need[*]})" >&2
	exit 1
fi
echo "packages: installing ${need[*]}"
mkdir -p build
export DEBIAN_FRONTEND=noninteractive
{ apt-get update -qq && apt-get install -y -qq --no-install-recommends "${need[@]}"; } >build/apt.log 2>&1 ||
	{ cat build/apt.log >&2; exit 1; }
