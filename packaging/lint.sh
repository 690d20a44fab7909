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
mapfile -t c_files < <(find proto interpose nodeagent/bpf tests -name '*.[ch]' | sort) # not git's list: there may be no git
check ruff ruff check --quiet .
check ruff-format ruff format --check --quiet .
check mypy mypy
check import-layers lint-imports
check clang-format clang-format --dry-run --Werror "${c_files[@]}"
if [ -f build/meson/compile_commands.json ]; then
	mapfile -t units < <(find interpose -name '*.c' | sort)
	# Each file once: the database has it again for every sanitizer variant of the tests.
	mkdir -p build/tidy
	python3 - <<-'PY'
		import json
		commands = json.load(open("build/meson/compile_commands.json"))
		once = {c["file"]: c for c in reversed(commands)}
		json.dump(list(once.values()), open("build/tidy/compile_commands.json", "w"))
	PY
	# One file for each call: the analyzer remembers lists of arguments of the files before, and takes ours for unset.
	check clang-tidy xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/tidy <<<"${units[*]}"
fi
exit $status
