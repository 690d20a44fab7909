#!/bin/bash
# Runs the tests that touch foreign libraries with the oldest versions of those (packaging/development/floor.txt), in .venv-floor.
#
#   packaging/development/floor.sh quick [PYTEST ARGUMENT …]   the wire, the pages and the manifests: `make test-oldest`, part of CI
#   packaging/development/floor.sh full  [PYTEST ARGUMENT …]   all that such a library could change: `make test-floor`
#
# It needs Python 3.11, Debian 12's: for later ones there are no wheels that old. Without one `quick` says so and
# leaves it at that, `full` fails.
set -euo pipefail
which=${1:?usage: floor.sh quick|full [PYTEST ARGUMENT …]}
shift
cd "$(dirname "$0")/../.."
venv=.venv-floor

for python in "${PYTHON311:-}" .venv/bin/python python3.11 python3 ""; do
	[ -n "$python" ] || continue
	"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && break
done
if [ -z "$python" ]; then
	echo "floor: needs Python 3.11, which is not here (PYTHON311=/path/to/python3.11, or apt install python3.11)" >&2
	[ "$which" = quick ] && exit 0
	exit 1
fi

if [ ! -e "$venv/.ready" ] || [ packaging/development/floor.txt -nt "$venv/.ready" ]; then
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/pip" install -q --disable-pip-version-check --only-binary :all: \
		-r packaging/development/floor.txt 'pytest>=8.2' pytest-timeout hypothesis prometheus-client
	packaging/development/checkout.sh "$venv"
	touch "$venv/.ready"
fi

case $which in
quick)
	tests=(
		tests/unit/test_floor.py
		tests/unit/nodeagent/{metrics/test_metrics,api/test_metrics_http,settings/test_hami_config}.py
		tests/unit/kubernetes/test_client.py
		tests/queue/manifests/test_{manifests,lint}.py
		tests/queue/server/test_{api,pages}.py tests/queue/serving/test_node_figures.py
		tests/kubelet/test_plugin.py
	)
	;;
full)
	# Not the cycles of the engine, which import nothing foreign, and nothing that is about the C library alone.
	tests=(
		tests/unit tests/queue tests/kubelet
		tests/integration/{gpus/test_nvml_reader,daemon/test_daemon_grants,daemon/test_daemon_restart,test_whole_node,pods/test_pods,pods/test_strategies}.py
	)
	;;
*)
	echo "floor: $which is neither quick nor full" >&2
	exit 2
	;;
esac
PATH=$PWD/$venv/bin:$PATH exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}" "$@"
