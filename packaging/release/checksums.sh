#!/bin/bash
# Writes SHA256SUMS over every file below DIR, and signs it with the SSH key KEY (SHA256SUMS.sig) if one is given. Who has
# the release checks both with packaging/release/verify.sh. usage: checksums.sh DIR [KEY]
set -euo pipefail
dir=${1:?usage: checksums.sh DIR [KEY]}
key=${2:-}
cd "$dir"
rm -f SHA256SUMS SHA256SUMS.sig
find . -type f ! -name '*.new' -printf '%P\0' | LC_ALL=C sort -z | xargs -0 -r sha256sum -- >SHA256SUMS.new
[ -s SHA256SUMS.new ] || { rm -f SHA256SUMS.new; echo "checksums: no file below $dir" >&2; exit 1; }
mv SHA256SUMS.new SHA256SUMS
if [ -n "$key" ]; then
	ssh-keygen -q -Y sign -n sluice-release -f "$key" SHA256SUMS
else
	echo "checksums: $dir/SHA256SUMS is not signed: no key was given" >&2
fi
