#!/bin/bash
# Prints the directory of the virtual environment in which the clients of `make test-clients` live, made when it is not
# there yet: what tests/clients/requirements.txt pins, by digest, and nvtop out of Debian's package. It lies outside of
# the checkout, named by the pins. `--pin` writes requirements.txt anew from requirements.in.
set -euo pipefail
cd "$(dirname "$0")/.."
pins=tests/clients/requirements.txt
digest=$(cat "$pins" "$0" <(python3 --version) | sha256sum | cut -c1-12)
place=${SLUICE_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/clients-$digest
log=build/clients.log
mkdir -p build "$(dirname "$place")"
exec 9>"$place.lock"
flock 9 # two at a time: one makes it, the other finds it

if [ "${1:-}" = --pin ]; then
	exec python3 packaging/clients_pin.py tests/clients/requirements.in "$pins"
fi
if [ ! -e "$place/.ready" ]; then
	rm -rf "$place"
	python3 -m venv "$place"
	"$place/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$pins" >"$log" 2>&1 ||
		{ tail -n 20 "$log" >&2; exit 1; }
	touch "$place/.ready"
fi
# nvtop is in Debian's contrib, which a machine need not have in its sources: a list of our own, for this once.
if [ ! -e "$place/bin/nvtop" ] && command -v apt-get >/dev/null; then
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	mkdir -p "$scratch/lists/partial"
	release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
	case $(. /etc/os-release && echo "$ID") in
	ubuntu) echo "deb http://archive.ubuntu.com/ubuntu $release universe" ;;
	*) echo "deb http://deb.debian.org/debian $release contrib" ;;
	esac >"$scratch/sources.list"
	apt=(apt-get -qq -o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$scratch/lists")
	(cd "$scratch" && "${apt[@]}" update && "${apt[@]}" download nvtop && dpkg-deb -x nvtop_*.deb root) >>"$log" 2>&1 &&
		install -m 755 "$scratch/root/usr/bin/nvtop" "$place/bin/nvtop" || true # the test says that there is none
fi
echo "$place"
