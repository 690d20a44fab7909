#!/bin/bash
# Makes the checkout importable in the virtual environment given, and puts the commands on its path; no install step to
# forget after an edit.
set -euo pipefail
venv=${1:?usage: checkout.sh VENV}
cd "$(dirname "$0")/../.."

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pwd >"$site/sluice-checkout.pth"
launcher() { # COMMAND PACKAGE
	cat >"$venv/bin/$1" <<-SH
		#!$PWD/$venv/bin/python
		import sys
		from $2.cli import main
		sys.exit(main())
	SH
	chmod +x "$venv/bin/$1"
}
launcher sluice nodeagent
launcher sluice-queue queuecontroller
