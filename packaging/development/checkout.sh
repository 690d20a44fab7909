#!/bin/bash
# Makes the checkout importable in the virtual environment given, and puts the commands on its path; no install step to
# forget after an edit.
set -euo pipefail
venv=${1:?usage: checkout.sh VENV}
cd "$(dirname "$0")/../.."

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pwd >"$site/sluice-checkout.pth"
# The kernel splits the path of an interpreter at a space and cuts it at 127 bytes. There the shell starts Python, in a line
# that is a string to Python; pip writes its commands in the same way.
python=$PWD/$venv/bin/python
first_line="#!$python"
if [[ $python == *[[:space:]]* || ${#first_line} -gt 127 ]]; then
	first_line=$(printf '%s\n' '#!/bin/sh' "'''exec' \"$python\" \"\$0\" \"\$@\"" "' '''")
fi
launcher() { # COMMAND PACKAGE
	cat >"$venv/bin/$1" <<-SH
		$first_line
		import sys
		from $2.cli import main
		sys.exit(main())
	SH
	chmod +x "$venv/bin/$1"
}
launcher sluice nodeagent
launcher sluice-queue queuecontroller
