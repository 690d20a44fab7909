#!/bin/bash
# Prints the path of a Chromium for the tests of the page: the one on the path, else Debian's, installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
for name in chromium chromium-browser google-chrome; do
	command -v "$name" && exit 0
done
packaging/fetch/tools.sh chromium=chromium >&2
command -v chromium
