#!/bin/bash
# Runs all static checks, also after a failure; the exit status is 1 if any failed.
set -uo pipefail
cd "$(dirname "$0")/../.."
status=0
check() {
	local name=$1
	shift
	if output=$("$@" 2>&1); then
		printf 'lint: %-14s ok\n' "$name"
	else
		printf 'lint: %-14s FAILED\n%s\n' "$name" "$output"
		status=1
	fi
}
mapfile -t c_files < <(find proto interpose simgpu nativecommon nodeagent/bpf tests -name '*.[ch]' | sort) # not git's list: a release has no .git
check ruff ruff check --quiet .
check ruff-format ruff format --check --quiet .
check mypy mypy
check import-layers lint-imports
check c-layers python3 packaging/development/c_layers.py
check docstrings python3 packaging/development/docstrings.py simgpu tests packaging nodeagent queuecontroller sluicecommon
check clang-format clang-format --dry-run --Werror "${c_files[@]}"
if [ -f build/meson/compile_commands.json ]; then
	mapfile -t units < <(find interpose simgpu nativecommon -name '*.c' | sort)
	check clang-tidy python3 packaging/development/tidy.py "${units[@]}"
fi
exit $status
