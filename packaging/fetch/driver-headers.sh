#!/bin/bash
# Prints the folder with the headers of the driver API and of NVML, extracted from their packages on PyPI once per
# version into build/headers. Tests compare with them (tests/interpose/driver/test_newest.py); nothing is built with them.
# HEADERS=newest takes the newest on PyPI; the default is the version that the lists of interpose/ were made from.
set -euo pipefail
cd "$(dirname "$0")/../.."
case ${HEADERS:-} in
newest) runtime=nvidia-cuda-runtime nvml=nvidia-nvml-dev profiler=nvidia-cuda-profiler-api place=$PWD/build/headers/newest ;;
*) runtime=nvidia-cuda-runtime==13.5.37 nvml=nvidia-nvml-dev==13.5.37 profiler=nvidia-cuda-profiler-api==13.5.25 place=$PWD/build/headers/13.5.37 ;;
esac
if [ "${HEADERS:-}" = newest ] || [ ! -e "$place/.complete" ]; then
	python=.venv/bin/python
	[ -x $python ] || python=python3
	fresh=$(mktemp -d)
	trap 'rm -rf "$fresh"' EXIT
	# The headers are the same for every platform, so the platform of an existing wheel is named.
	$python -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: \
		--platform manylinux2014_x86_64 -d "$fresh" "$runtime" "$nvml" "$profiler" >&2
	rm -rf "$place" && mkdir -p "$place"
	for wheel in "$fresh"/*.whl; do
		$python -m zipfile -e "$wheel" "$fresh/out"
	done
	find "$fresh/out" -path '*/include/*' \( -name 'cuda*.h' -o -name nvml.h \) -exec cp {} "$place" \;
	touch "$place/.complete"
fi
echo "$place"
