#!/bin/bash
# The container image of the Debian packages in DEST/deb, into DEST/image and DEST/image.tar; as root. usage: image.sh DEST
set -euo pipefail
dest=$(realpath -m "${1:?usage: image.sh DEST}")
cd "$(dirname "$0")/../.."
SOURCE_DATE_EPOCH=$(packaging/release/epoch.sh)
export SOURCE_DATE_EPOCH
packaging/release/root.sh image build/debian/image-root.tar
python3 packaging/release/image.py build/debian/image-root.tar "$dest/deb" "$dest/image"
