#!/bin/bash
# Prepares a development machine: Debian packages if run as root, Python packages in the given virtual environment.
# Idempotent. Without root it prints the missing packages.
set -euo pipefail
venv=${1:?usage: setup.sh VENV}
cd "$(dirname "$0")/../.."

need=()
python3 -c 'import ensurepip, venv' 2>/dev/null || need+=(python3-venv)
command -v gcc >/dev/null || need+=(gcc libc6-dev)
command -v clang >/dev/null || need+=(clang)
# Certificates and namespaces of the tests' clusters and nodes.
command -v openssl >/dev/null || need+=(openssl)
command -v ip >/dev/null || need+=(iproute2)
command -v nsenter >/dev/null || need+=(util-linux)
[ -n "$(ls /usr/lib/*/libseccomp.so.2 /usr/lib64/libseccomp.so.2 2>/dev/null)" ] || need+=(libseccomp2)
[ -e /usr/include/stdio.h ] || need+=(libc6-dev)
if ! echo 'int main(void){return 0;}' | clang -x c -fsanitize=fuzzer-no-link,address - -o /dev/null 2>/dev/null; then
	need+=(libclang-rt-dev)
fi
[ -n "$(ls /usr/lib/*/libjemalloc.so.2 /usr/lib64/libjemalloc.so.2 2>/dev/null)" ] || need+=(libjemalloc2)
# The programs of nodeagent/bpf are built with clang (above) and these headers.
{ [ -e /usr/include/bpf/bpf_helpers.h ] && [ -e /usr/include/linux/bpf.h ]; } || need+=(libbpf-dev linux-libc-dev)
# As root they are tested with both loaders. bcc compiles them against kernel headers; a kernel without a package of
# headers gets another version's (the programs read no structure of the kernel), linked where bcc searches.
if [ "$(id -u)" = 0 ]; then
	[ -e /usr/lib/python3/dist-packages/bcc ] || need+=(python3-bpfcc)
	[ -n "$(ls -d /usr/src/linux-headers-* 2>/dev/null)" ] || [ -e "/lib/modules/$(uname -r)/build" ] ||
		need+=("linux-headers-$(dpkg --print-architecture 2>/dev/null || echo amd64)")
fi
if [ ${#need[@]} -gt 0 ]; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "setup: installing ${need[*]}"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq
		for package in "${need[@]}"; do
			# Debian 12 names clang's runtime by version; later releases have the plain name.
			apt-get install -y -qq --no-install-recommends "$package" >build/apt.log 2>&1 ||
				{ [ "$package" = libclang-rt-dev ] &&
					apt-get install -y -qq --no-install-recommends "libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev" >build/apt.log 2>&1; } ||
				{ cat build/apt.log; exit 1; }
		done
	else
		echo "setup: missing Debian packages: ${need[*]} (as root: apt-get install ${need[*]})" >&2
		case " ${need[*]} " in *" python3-venv "* | *" gcc "*) exit 1 ;; esac
	fi
fi

modules=/lib/modules/$(uname -r)
if [ "$(id -u)" = 0 ] && [ ! -e "$modules/build" ]; then
	build=$(find /usr/src -maxdepth 1 -name 'linux-headers-*' ! -name '*-common' 2>/dev/null | sort -V | tail -1)
	common=$(find /usr/src -maxdepth 1 -name 'linux-headers-*-common' 2>/dev/null | sort -V | tail -1)
	if [ -n "$build" ]; then
		mkdir -p "$modules"
		ln -sfn "$build" "$modules/build"
		ln -sfn "${common:-$build}" "$modules/source"
	fi
fi

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# The list is by version and hash, as packaging/development/lock.py resolved it; --check names what it lacks.
python3 packaging/development/lock.py --check
"$venv/bin/pip" install -q --disable-pip-version-check --require-hashes -r packaging/development/requirements-dev.txt
packaging/development/checkout.sh "$venv"
