#!/bin/sh
# Prints where packages of a Debian or Ubuntu release come from: $DEBIAN_MIRROR, or what this machine's apt has for it, or for
# another release of the same archive. usage: debian-mirror.sh RELEASE COMPONENT
set -eu
release=${1:?usage: debian-mirror.sh RELEASE COMPONENT}
component=${2:-main}
if [ -n "${DEBIAN_MIRROR:-}" ]; then
	echo "$DEBIAN_MIRROR"
	exit
fi
command -v apt-get >/dev/null || { echo "debian-mirror: no apt-get; set DEBIAN_MIRROR" >&2; exit 1; }
lines=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI) $(ORIGIN)' 'Identifier: Packages' 2>/dev/null)
# the release itself, the component if there is one; then the archive of that name under whatever release it is known
found=$(echo "$lines" | awk -v r="$release" -v c="$component" '
	$1 == r && $2 == c { print $3; exit }' )
[ -n "$found" ] || found=$(echo "$lines" | awk -v r="$release" '$1 == r { print $3; exit }')
case $release in
*-security) ;; # an archive of its own
*) [ -n "$found" ] || found=$(echo "$lines" | awk '$4 == "Debian" && $1 !~ /-/ { print $3; exit }') ;;
esac
[ -n "$found" ] || { echo "debian-mirror: apt has no source of $release; set DEBIAN_MIRROR" >&2; exit 1; }
echo "${found%/}"
