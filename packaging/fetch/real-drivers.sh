#!/bin/bash
# Prints one folder per line, each with the libcuda.so.1 and libnvidia-ml.so.1 of a real driver, to be loaded without a
# card. They are Debian's (non-free), taken out of their packages once into build/drivers; apt keeps its own state in
# there, so that the machine's sources stay as they are. Nothing is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD/build/drivers
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
mirror=$(packaging/fetch/debian-mirror.sh bookworm)
# branch, suite, the packages of its libcuda and of its NVML
drivers=(
	"470 bookworm libnvidia-tesla-470-cuda1 libnvidia-tesla-470-ml1"
	"535 bookworm libcuda1 libnvidia-ml1"
	"550 trixie libcuda1 libnvidia-ml1"
	"555 experimental libcuda1 libnvidia-ml1"
)
[ "$(uname -m)" = x86_64 ] || { echo "real drivers: only x86-64 is supported" >&2; exit 1; }
command -v apt-get >/dev/null || { echo "real drivers: apt-get is missing, it downloads them" >&2; exit 1; }
[ -e $keyring ] || { echo "real drivers: $keyring is missing, it verifies them" >&2; exit 1; }
for row in "${drivers[@]}"; do
	read -r branch suite packages <<<"$row"
	place=$root/$branch
	if [ ! -e "$place/.complete" ]; then
		state=$root/apt-$suite
		mkdir -p "$state"/{lists/partial,cache/archives/partial,parts}
		touch "$state/status"
		echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite non-free" >"$state/sources.list"
		options=(-o Dir::State="$state" -o Dir::State::Lists="$state/lists" -o Dir::State::status="$state/status"
			-o Dir::Cache="$state/cache" -o Dir::Etc::sourcelist="$state/sources.list"
			-o Dir::Etc::sourceparts="$state/parts" -o Dir::Etc::preferencesparts="$state/parts"
			-o APT::Sandbox::User= -o APT::Architecture=amd64)
		apt-get "${options[@]}" -qq update >&2 || { echo "real drivers: no answer from $mirror" >&2; exit 1; }
		fresh=$(mktemp -d)
		# shellcheck disable=SC2086 # two names
		(cd "$fresh" && apt-get "${options[@]}" -qq download $packages >&2 && for deb in *.deb; do dpkg-deb -x "$deb" out; done) ||
			{ rm -rf "$fresh"; echo "real drivers: $suite has none of branch $branch" >&2; exit 1; }
		rm -rf "$place" && mkdir -p "$place"
		for name in libcuda.so libnvidia-ml.so; do
			cp "$(find "$fresh/out" -name "$name.*.*" -type f | head -1)" "$place/$name.1"
		done
		rm -rf "$fresh"
		touch "$place/.complete"
	fi
	echo "$place"
done
