#!/bin/bash
# Compiles the C and the wire descriptors in MESON_DIR, and puts them in place below DEST. usage: compile.sh MESON_DIR DEST
set -euo pipefail
meson_dir=${1:?usage: compile.sh MESON_DIR DEST}
dest=${2:?usage: compile.sh MESON_DIR DEST}
mkdir -p "$dest"
if [ ! -f "$meson_dir/build.ninja" ]; then
	meson setup "$meson_dir" >"$dest/setup.log" 2>&1 || { cat "$dest/setup.log"; exit 1; }
fi
ninja -C "$meson_dir" --quiet
"$(dirname "$0")/stage.sh" "$meson_dir" "$dest"
