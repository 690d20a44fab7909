#!/bin/bash
# Prints the path of a compiler for musl: the one on the path, or Debian's, taken out of its packages into build/tools.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v musl-gcc && exit 0
root=$PWD/build/tools/musl
if [ ! -x "$root/musl-gcc" ]; then
	place=$(mktemp -d)
	trap 'rm -rf "$place"' EXIT
	packaging/fetch/unpacked.sh "$place" musl musl-dev musl-tools
	mkdir -p "$root"
	cp -r "$place/usr" "$root"
	specs=$(echo "$root"/usr/lib/*/musl-gcc.specs)
	loader=${specs%/*}/libc.so
	cp "$place"/lib/*-musl/libc.so "$loader"
	# The packages name their files below /, and programs their loader.
	sed -i -e "s|/usr/lib/|$root/usr/lib/|g; s|/usr/include/|$root/usr/include/|g; s|/lib/ld-musl-[^ ]*|$loader|" "$specs"
	printf '#!/bin/sh\nexec "${REALGCC:-gcc}" "$@" -specs "%s"\n' "$specs" >"$root/musl-gcc"
	chmod +x "$root/musl-gcc"
fi
echo "$root/musl-gcc"
