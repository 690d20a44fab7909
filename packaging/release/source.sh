#!/bin/bash
# Copies the sources to DEST with all downloads that a build needs, so that the build needs no network.
# VERSION: replaces the version in the file VERSION (the tests of upgrades build two).
# usage: [VERSION=x.y.z] source.sh DEST
set -euo pipefail
dest=${1:?usage: source.sh DEST}
cd "$(dirname "$0")/../.."
version=${VERSION:-$(cat VERSION)}
vendored=build/vendor
rm -rf "$dest"
mkdir -p "$dest" "$vendored"
# Not git's list: a release has no .git.
tar -c --exclude-vcs --exclude=./build --exclude=./.venv --exclude=./shared --exclude='__pycache__' --exclude='./.*' . |
	tar -x -C "$dest"
echo "$version" >"$dest/VERSION"
pip=(.venv/bin/pip)
[ -x "${pip[0]}" ] || pip=(python3 -m pip) # in a build of the Containerfile
[ -f "$vendored"/nvidia_ml_py-*.whl ] 2>/dev/null ||
	"${pip[@]}" download -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
		-d "$vendored" -r packaging/release/vendor.txt
mkdir -p "$dest/vendor"
python3 -m zipfile -e "$vendored"/nvidia_ml_py-*.whl "$dest/vendor/wheel"
mv "$dest/vendor/wheel/pynvml.py" "$dest/vendor/pynvml.py"
rm -rf "$dest/vendor/wheel"
# pip checks the hash of a download; a file of an earlier run is checked here.
(cd "$vendored" && sed -n 's/.*--hash=sha256:\([0-9a-f]*\).*/\1/p' ../../packaging/release/vendor.txt |
	grep -qx "$(sha256sum nvidia_ml_py-*.whl | cut -d' ' -f1)") ||
	{ echo "packages: $vendored holds a file that packaging/release/vendor.txt does not name; remove it" >&2; exit 1; }
