#!/bin/bash
# Builds the Debian packages into DEST. VERSION: another than the file has; WORK: name of the
# directory it is built in. usage: [VERSION=x.y.z] [WORK=NAME] deb.sh DEST
set -euo pipefail
dest=$(realpath -m "${1:?usage: deb.sh DEST}")
cd "$(dirname "$0")/../.."
packaging/fetch/tools.sh dpkg-buildpackage=dpkg-dev /usr/share/build-essential/list=build-essential dh=debhelper dh_python3=dh-python fakeroot=fakeroot \
	/usr/bin/meson=meson ninja=ninja-build protoc=protobuf-compiler \
	clang=clang /usr/include/bpf/bpf_helpers.h=libbpf-dev /usr/include/linux/bpf.h=linux-libc-dev
version=${VERSION:-$(cat VERSION)}
work=$(realpath -m "build/work/${WORK:-$version}")
SOURCE_DATE_EPOCH=$(packaging/release/epoch.sh)
export SOURCE_DATE_EPOCH
packaging/release/source.sh "$work/sluice-$version"
cd "$work/sluice-$version"
cp -r packaging/debian debian
# Debian requires them side by side, by the package's name.
for part in common nodeagent queue sim; do
	for file in debian/"$part"/*; do mv "$file" "debian/sluice-$part.${file##*/}"; done
	rmdir debian/"$part"
done
cat >debian/changelog <<-EOF
	sluice ($version) unstable; urgency=medium

	  * See /usr/share/doc/sluice-nodeagent/CHANGELOG.md.

	 -- Sluice maintainers <maintainers@sluice.dev>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")
EOF
# Nothing of the caller's: not its Python (a virtual environment may be on the path), not its locale.
if ! env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME="$work" LC_ALL=C.UTF-8 TZ=UTC \
	SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" DEB_BUILD_OPTIONS="parallel=$(nproc) noautodbgsym" \
	nice dpkg-buildpackage -b -us -uc >"$work/build.log" 2>&1; then
	tail -40 "$work/build.log" >&2
	echo "packages: the build failed, all of it in $work/build.log" >&2
	exit 1
fi
mkdir -p "$dest"
rm -f "$dest"/*.deb "$dest"/*.changes "$dest"/*.buildinfo
mv "$work"/*.deb "$work"/*.changes "$work"/*.buildinfo "$dest"
(cd "$dest" && ls -1 ./*.deb)
