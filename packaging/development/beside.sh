#!/bin/bash
# Runs commands beside another one, at the lowest priority, so that what only computes fills the time in which that waits.
#
#   beside.sh 'lint=make lint' 'floor=…' -- COMMAND …
#
# What each of them says comes after the end of COMMAND; the status is bad when any was.
set -uo pipefail
names=() pids=()
mkdir -p build
end() { [ ${#pids[@]} -eq 0 ] || kill -- "${pids[@]/#/-}" 2>/dev/null; }
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
set -m # each in a process group of its own, which is ended as one
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
		# For tests/ci, which forgives tests only.
		[ -z "${SLUICE_CI_RECORD:-}" ] || echo "${names[at]} failed" >"$SLUICE_CI_RECORD/beside-${names[at]}.broken"
	}
	cat "build/beside-${names[at]}.log"
done
pids=()
exit $status
