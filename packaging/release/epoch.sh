#!/bin/bash
# The time that is written into packages: SOURCE_DATE_EPOCH, the last commit, or the newest source file.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ -n "${SOURCE_DATE_EPOCH:-}" ]; then
	echo "$SOURCE_DATE_EPOCH"
elif git log -1 --format=%ct 2>/dev/null; then
	:
else
	find proto interpose nativecommon simgpu nodeagent queuecontroller sluicecommon packaging -type f -printf '%T@\n' | sort -n | tail -1 | cut -d. -f1
fi
