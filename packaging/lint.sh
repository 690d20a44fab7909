#!/bin/bash
# All static checks, each run even when one before it failed; the exit status says whether any did.
set -uo pipefail
cd "$(dirname "$0")/.."
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
mapfile -t c_files < <(git ls-files 'proto/*.h' 'interpose/*.[ch]' 'interpose/**/*.[ch]' 'tests/*.[ch]' 'tests/**/*.[ch]' 2>/dev/null)
check ruff ruff check --quiet .
check ruff-format ruff format --check --quiet .
check mypy mypy
check import-layers lint-imports
if [ ${#c_files[@]} -gt 0 ]; then
	check clang-format clang-format --dry-run --Werror "${c_files[@]}"
fi
if [ -f build/meson/compile_commands.json ]; then
	mapfile -t units < <(git ls-files 'interpose/*.c')
	check clang-tidy clang-tidy --quiet -p build/meson "${units[@]}"
fi
exit $status
