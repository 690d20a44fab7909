#!/bin/bash
# Copies what meson built to the fixed paths under build/ that tests, the daemon and outside checks use.
# Each file is a new inode that takes its place by a rename: a library mapped by a running tenant is never rewritten in place,
# no reader finds a file missing or half written, and concurrent runs do not disturb each other.
set -euo pipefail
meson_dir=${1:?usage: stage.sh MESON_DIR DEST}
dest=${2:?usage: stage.sh MESON_DIR DEST}
put() { # MODE SOURCE TARGET
	cmp -s "$2" "$3" && return
	mkdir -p "$(dirname "$3")"
	local new=$3.$$.new
	install -m "$1" "$2" "$new"
	mv -fT "$new" "$3"
}
stage() { put 0755 "$meson_dir/$1" "$dest/$2"; }
# As a driver lays them out: the file has the driver's version in its name, and the soname is a link to it.
for library in libcuda.so libnvidia-ml.so; do
	versioned=$(basename "$(readlink -f "$meson_dir/simgpu/$library.1")")
	stage "simgpu/$versioned" "sim/$versioned"
	link=$dest/sim/$library.1
	if [ "$(readlink "$link")" != "$versioned" ]; then
		ln -s "$versioned" "$link.$$.new"
		mv -fT "$link.$$.new" "$link"
	fi
done
stage interpose/shim/libcuda.so.1 shim/libcuda.so.1
stage interpose/shim/libnvidia-ml.so.1 shim/libnvidia-ml.so.1
stage interpose/preload/libsluice.so preload/libsluice.so
stage interpose/libsluice_region.so libsluice_region.so
if [ -f "$meson_dir/interpose/hook/sluice-container-hook" ]; then
	stage interpose/hook/sluice-container-hook hook/sluice-container-hook
fi
put 0644 "$(dirname "$0")/../../interpose/preload/ld.so.preload" "$dest/preload/ld.so.preload"
for object in watch watch.old; do
	[ -f "$meson_dir/nodeagent/bpf/$object.bpf.o" ] || continue
	put 0644 "$meson_dir/nodeagent/bpf/$object.bpf.o" "$dest/bpf/$object.bpf.o"
done
for set in sluice kubelet queue; do
	put 0644 "$meson_dir/proto/$set.binpb" "$dest/proto/$set.binpb"
done
