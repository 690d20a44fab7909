#!/bin/bash
# Checks a release: that SHA256SUMS in DIR is signed by SIGNER as ALLOWED says (a file as ssh-keygen(1) calls
# ALLOWED SIGNERS: "NAME namespaces=\"sluice-release\" ssh-ed25519 AAAA…"), that every file it names is as it was, and
# that there is no other. usage: verify.sh DIR ALLOWED SIGNER
set -euo pipefail
dir=${1:?usage: verify.sh DIR ALLOWED SIGNER}
allowed=$(realpath "${2:?usage: verify.sh DIR ALLOWED SIGNER}")
signer=${3:?usage: verify.sh DIR ALLOWED SIGNER}
cd "$dir"
for file in SHA256SUMS SHA256SUMS.sig; do
	[ -f "$file" ] || { echo "verify: $dir has no $file" >&2; exit 1; }
done
ssh-keygen -q -Y verify -n sluice-release -f "$allowed" -I "$signer" -s SHA256SUMS.sig <SHA256SUMS ||
	{ echo "verify: SHA256SUMS is not signed by $signer" >&2; exit 1; }
sha256sum --quiet --strict --check SHA256SUMS || { echo "verify: a file is not what was released" >&2; exit 1; }
unknown=$(comm -23 <(find . -type f ! -path ./SHA256SUMS ! -path ./SHA256SUMS.sig -printf '%P\n' | LC_ALL=C sort) \
	<(cut -c67- SHA256SUMS | LC_ALL=C sort))
[ -z "$unknown" ] || { printf 'verify: not part of the release: %s\n' "$unknown" >&2; exit 1; }
echo "verify: $(wc -l <SHA256SUMS) files, signed by $signer"
