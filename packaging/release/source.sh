#!/bin/bash
# A clean copy of the sources at DEST with everything a build needs that is not in them: no network from here on.
# VERSION: what to build instead of what VERSION says (the tests of upgrades build two).
# usage: [VERSION=x.y.z] source.sh DEST
set -euo pipefail
dest=${1:?usage: source.sh DEST}
cd "$(dirname "$0")/../.."
version=${VERSION:-$(cat VERSION)}
vendored=build/vendor
rm -rf "$dest"
mkdir -p "$dest" "$vendored"
# Not git's list: there may be no git.
tar -c --exclude-vcs --exclude=./build --exclude=./.venv --exclude=./shared --exclude='__pycache__' --exclude='./.*' . |
	tar -x -C "$dest"
echo "$version" >"$dest/VERSION"
[ -f "$vendored"/nvidia_ml_py-*.whl ] 2>/dev/null ||
	.venv/bin/pip download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		-d "$vendored" -r packaging/release/vendor.txt
mkdir -p "$dest/vendor"
python3 -m zipfile -e "$vendored"/nvidia_ml_py-*.whl "$dest/vendor/wheel"
mv "$dest/vendor/wheel/pynvml.py" "$dest/vendor/pynvml.py"
rm -rf "$dest/vendor/wheel"
# pip's hashes hold for what it fetched; what lies there from an earlier time is checked here.
(cd "$vendored" && sed -n 's/.*--hash=sha256:\([0-9a-f]*\).*/\1/p' ../../packaging/release/vendor.txt |
	grep -qx "$(sha256sum nvidia_ml_py-*.whl | cut -d' ' -f1)") ||
	{ echo "packages: $vendored holds a file that packaging/release/vendor.txt does not name; remove it" >&2; exit 1; }
