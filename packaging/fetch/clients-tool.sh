#!/bin/bash
# Prints the directory of the virtual environment in which the clients of `make test-clients` live, made when it is not
# there yet: what tests/clients/requirements.txt pins, by digest, nvtop out of Debian's package, and all-smi from crates.io.
# It lies outside of the checkout, named by the pins. `--pin` writes requirements.txt anew from requirements.in.
set -euo pipefail
cd "$(dirname "$0")/../.."
pins=tests/clients/requirements.txt
built=tests/clients/built.txt
digest=$(cat "$pins" "$built" "$0" <(python3 --version) | sha256sum | cut -c1-12)
place=${SLUICE_CLIENTS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}/clients-$digest
log=$PWD/build/clients.log
mkdir -p build "$(dirname "$place")"
exec 9>"$place.lock"
flock 9 # two at a time: one makes it, the other finds it

if [ "${1:-}" = --pin ]; then
	python3 packaging/fetch/clients_pin.py tests/clients/requirements.in "$pins"
	exec python3 packaging/fetch/clients_pin.py --alone tests/clients/built.in "$built"
fi
if [ ! -e "$place/.ready" ]; then
	rm -rf "$place"
	python3 -m venv "$place"
	"$place/bin/pip" install -q --disable-pip-version-check --require-hashes -r "$pins" >"$log" 2>&1 ||
		{ tail -n 20 "$log" >&2; exit 1; }
	touch "$place/.ready"
fi
# PyCUDA has its source alone on PyPI: built against CUDA's headers of the pins, linked with the simulated driver for its names
# (which driver it gets is known when it runs), and with where its libraries are, so that no other build of it will do. Minutes, once; where there is no compiler its test says that it is missing.
if [ ! -e "$place/.built" ] && command -v g++ >/dev/null && [ -e build/sim/libcuda.so.1 ]; then
	cuda=$(echo "$place"/lib/python3.*/site-packages/nvidia/cu*/)
	root=$place/cuda-root
	mkdir -p "$root/lib64"
	ln -sfn "$cuda/include" "$root/include"
	ln -sf "$PWD/build/sim/libcuda.so.1" "$root/lib64/libcuda.so"
	ln -sf "$(echo "$cuda"/lib/libcurand.so.*)" "$root/lib64/libcurand.so"
	CUDA_ROOT=$root CPATH=$root/include LIBRARY_PATH=$root/lib64 LDFLAGS="-Wl,-rpath,$cuda/lib" \
		"$place/bin/pip" install -q --disable-pip-version-check --no-cache-dir --no-build-isolation --no-deps \
		--require-hashes -r "$built" >>"$log" 2>&1 && touch "$place/.built" || true
fi
# nvtop is in Debian's contrib, which a machine need not have in its sources: a list of our own, for this once.
if [ ! -e "$place/bin/nvtop" ] && command -v apt-get >/dev/null; then
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	mkdir -p "$scratch/lists/partial"
	release=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
	component=contrib
	[ "$(. /etc/os-release && echo "$ID")" = ubuntu ] && component=universe
	echo "deb $(packaging/fetch/debian-mirror.sh "$release" "$component") $release $component" >"$scratch/sources.list"
	apt=(apt-get -qq -o "Dir::Etc::sourcelist=$scratch/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "Dir::State::lists=$scratch/lists")
	(cd "$scratch" && "${apt[@]}" update && "${apt[@]}" download nvtop && dpkg-deb -x nvtop_*.deb root) >>"$log" 2>&1 &&
		install -m 755 "$scratch/root/usr/bin/nvtop" "$place/bin/nvtop" || true # the test says that there is none
fi
# all-smi is a Rust crate, of which crates.io has the source alone: some 15 minutes of a processor, once. It is built with the
# versions of its own lock file, a protoc with the well-known types, and Debian's libdrm to link with (it reads AMD's cards, too).
smi=0.22.0
protos=$(.venv/bin/python -c 'import grpc_tools, os; print(os.path.join(os.path.dirname(grpc_tools.__file__), "_proto"))' 2>>"$log" || true)
if [ ! -e "$place/bin/all-smi" ] && command -v cargo >/dev/null && command -v protoc >/dev/null && [ -n "$protos" ] &&
	command -v apt-get >/dev/null; then
	crates=$(mktemp -d)
	(cd "$crates" && apt-get -qq download libdrm-dev libdrm2 libdrm-amdgpu1 &&
		for package in *.deb; do dpkg-deb -x "$package" root; done &&
		LIBRARY_PATH=$(dirname "$(find "$PWD/root" -name libdrm.so)") PROTOC_INCLUDE=$protos \
			CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$crates/target} \
			cargo install -q --locked --root "$place" --bin all-smi --version "$smi" all-smi) >>"$log" 2>&1 ||
		true # the test says that there is none
	rm -rf "$crates"
fi
echo "$place"
