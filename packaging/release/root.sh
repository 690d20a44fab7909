#!/bin/bash
# Builds a tar archive of Debian 12 with the dependencies of our packages, once: `machine` with systemd for tests of an
# operator's fresh machine, `image` as the base of the container image. usage: root.sh machine|image ARCHIVE
set -euo pipefail
kind=${1:?usage: root.sh machine|image ARCHIVE}
archive=$(realpath -m "${2:?usage: root.sh machine|image ARCHIVE}")
cd "$(dirname "$0")/../.."
mkdir -p "$(dirname "$archive")"
exec 9>"$archive.lock"
flock 9
# An archive built by this version of the script is reused.
made_by=$(cat packaging/release/root.sh packaging/release/needs | sha256sum | cut -d' ' -f1)
[ -f "$archive" ] && [ "$(cat "$archive.made-by" 2>/dev/null)" = "$made_by" ] && exit 0
packaging/fetch/tools.sh mmdebstrap=mmdebstrap
mirror=$(packaging/fetch/debian-mirror.sh bookworm)
security=$(DEBIAN_MIRROR=${DEBIAN_SECURITY_MIRROR:-} packaging/fetch/debian-mirror.sh bookworm-security)
needs=$(paste -sd, packaging/release/needs)
case $kind in
machine) needs+=,systemd,systemd-sysv,dbus,curl,procps,iproute2,libpam-systemd ;;
image) needs+=,systemd-standalone-sysusers ;;
*) echo "root.sh: $kind is neither machine nor image" >&2; exit 2 ;;
esac
SOURCE_DATE_EPOCH=$(packaging/release/epoch.sh)
export SOURCE_DATE_EPOCH
# The image has no documentation except licences, like Debian's slim images.
slim=(--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*')
[ "$kind" = image ] || slim=()
mmdebstrap --quiet --variant=minbase --mode=root --include="$needs" --skip=cleanup/apt/lists "${slim[@]}" \
	bookworm "$archive.new.tar" "deb $mirror bookworm main" \
	"deb $mirror bookworm-updates main" "deb $security bookworm-security main" \
	>"$archive.log" 2>&1 || { tail -20 "$archive.log" >&2; exit 1; }
mv "$archive.new.tar" "$archive"
echo "$made_by" >"$archive.made-by"
