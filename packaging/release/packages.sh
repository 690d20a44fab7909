#!/bin/bash
# Builds all files of a release below DEST, with their checksums. SLUICE_SIGNING_KEY: an SSH key to sign them with.
# usage: packages.sh DEST
set -euo pipefail
dest=${1:?usage: packages.sh DEST}
cd "$(dirname "$0")/../.."
# The checksums cover the whole directory, so it may contain nothing else.
for entry in "$dest"/*; do
	case ${entry##*/} in
	deb | rpm | image | image.tar | sluice.yaml | SHA256SUMS | SHA256SUMS.sig | '*') ;;
	*) echo "packages: $entry is no part of a release: remove it, or give another directory" >&2; exit 1 ;;
	esac
done
packaging/release/deb.sh "$dest/deb"
SOURCE_DATE_EPOCH=$(packaging/release/epoch.sh)
export SOURCE_DATE_EPOCH
python3 packaging/release/sbom.py "$dest/deb" >"$dest/deb/sluice.cdx.json"
packaging/release/rpm.sh "$dest/rpm"
python3 packaging/release/sbom.py "$dest/rpm" >"$dest/rpm/sluice.cdx.json"
if [ "$(id -u)" = 0 ]; then # chroot, and files of other owners, need root
	packaging/release/image.sh "$dest"
else
	echo "packages: no container image: that needs root" >&2
fi
packaging/release/manifest.sh "$dest"
packaging/release/checksums.sh "$dest" "${SLUICE_SIGNING_KEY:-}"
