#!/bin/bash
# Runs commands beside another one at the lowest priority, so that computations use the time in which the other waits.
#
#   beside.sh 'lint=make lint' 'floor=…' -- COMMAND …
#
# Their output is printed after COMMAND has ended; the exit status is that of the first failure.
set -uo pipefail
names=() pids=()
mkdir -p build
end() { [ ${#pids[@]} -eq 0 ] || kill -- "${pids[@]/#/-}" 2>/dev/null; }
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
set -m # each command has a process group of its own, which is killed as a whole
while [ "$1" != -- ]; do
	name=${1%%=*}
	nice -n 19 bash -c "${1#*=}" >"build/beside-$name.log" 2>&1 </dev/null &
	names+=("$name") pids+=($!)
	shift
done
set +m
shift
"$@"
status=$?
for at in "${!pids[@]}"; do
	wait "${pids[at]}" || {
		echo "beside: ${names[at]} FAILED"
		status=1
		# tests/ci forgives flaky tests only, so this failure is recorded as broken.
		[ -z "${SLUICE_CI_RECORD:-}" ] || echo "${names[at]} failed" >"$SLUICE_CI_RECORD/beside-${names[at]}.broken"
	}
	cat "build/beside-${names[at]}.log"
done
pids=()
exit $status
