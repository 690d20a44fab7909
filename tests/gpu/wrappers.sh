#!/bin/bash
# In an unpacked archive: .venv/bin/python and .venv/bin/sluice around a Python that is on the machine (SLUICE_GPU_PYTHON, or the
# first of python3's that can import what the node needs). Modules that it lacks come from vendor/: those without compiled
# code fit any version, the others only the one that they were built for.
set -euo pipefail
cd "$(dirname "$0")/../.."
needed='import aiohttp, google.protobuf, grpc, psutil, pynvml, pyroute2, yaml'
here=$PWD
for python in ${SLUICE_GPU_PYTHON:-} python3 /usr/bin/python3 python3.13 python3.12 python3.11; do
	python=$(command -v "$python") || continue
	python=$("$python" -c 'import sys; print(sys.executable if sys.version_info >= (3, 11) else "")')
	[ -n "$python" ] || continue
	tag=$("$python" -c 'import sys; print(sys.implementation.cache_tag)')
	for path in "$here/vendor/pure" "$here/vendor/pure:$here/vendor/$tag"; do
		if PYTHONPATH=$path "$python" -c "$needed" 2>/dev/null; then
			mkdir -p .venv/bin
			printf '#!/bin/sh\nexec env PYTHONPATH="%s:%s" "%s" "$@"\n' "$here" "$path" "$python" >.venv/bin/python
			# `sluice run` without PYTHONPATH: a grant's program must not get our modules instead of its own.
			cat >.venv/bin/sluice <<-END
				#!/bin/sh
				[ "\$1" = run ] || exec env PYTHONPATH="$here:$path" "$python" -m nodeagent.cli "\$@"
				exec "$python" -c "import sys; sys.path[:0] = '$here:$path'.split(':'); from nodeagent.cli import main; sys.exit(main())" "\$@"
			END
			chmod +x .venv/bin/python .venv/bin/sluice
			# Compiles them once, before any scene's time begins.
			.venv/bin/python -c 'import nodeagent.assembly.daemon, nodeagent.cli.main, tests.gpu.plan'
			exit 0
		fi
	done
done
echo "no python3 of 3.11 or later here can import what is needed ($needed), with vendor/ or without" >&2
exit 3
