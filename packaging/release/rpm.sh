#!/bin/bash
# Builds the RPM packages into DEST with this machine's rpmbuild. VERSION: replaces the version in the file VERSION;
# WORK: name of the build directory. usage: [VERSION=x.y.z] [WORK=NAME] rpm.sh DEST
set -euo pipefail
dest=$(realpath -m "${1:?usage: rpm.sh DEST}")
cd "$(dirname "$0")/../.."
packaging/fetch/tools.sh rpmbuild=rpm gcc=gcc /usr/bin/meson=meson ninja=ninja-build protoc=protobuf-compiler \
	clang=clang /usr/include/bpf/bpf_helpers.h=libbpf-dev /usr/include/linux/bpf.h=linux-libc-dev
version=${VERSION:-$(cat VERSION)}
work=$(realpath -m "build/work/rpm-${WORK:-$version}")
SOURCE_DATE_EPOCH=$(packaging/release/epoch.sh)
export SOURCE_DATE_EPOCH
rm -rf "$work"
packaging/release/source.sh "$work/sluice-$version"
mkdir -p "$work/SOURCES" "$dest"
tar -C "$work" --sort=name --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" -cf "$work/SOURCES/sluice-$version.tar" "sluice-$version"
# --nodeps: on Debian the build tools are installed by dpkg, so they are not in rpm's database.
if ! env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$work" LC_ALL=C.UTF-8 TZ=UTC \
	SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" nice rpmbuild -bb --nodeps --define "_topdir $work" \
	--define "sluice_version $version" "$work/sluice-$version/packaging/rpm/sluice.spec" >"$work/build.log" 2>&1; then
	tail -40 "$work/build.log" >&2
	echo "packages: the build failed, see $work/build.log" >&2
	exit 1
fi
rm -f "$dest"/*.rpm
mv "$work"/RPMS/*/*.rpm "$dest"
(cd "$dest" && ls -1 ./*.rpm)
