"""Entry point of `kubectl-sluice`, which kubectl runs for `kubectl sluice …`.

Exit status: kubectl's own; 2 bad usage, 69 kubectl not found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

from queuecontroller.cli.kubectl.looking import Refused, top, web
from queuecontroller.cli.kubectl.plan import Usage, looking, make_parser, plan
from queuecontroller.cli.kubectl.tables import pending_lines, workload_lines
from queuecontroller.cli.tables import now

EXIT_USAGE: Final = 2
EXIT_MISSING: Final = 69


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    kubectl = os.environ.get("KUBECTL", "kubectl")
    try:
        found = looking(words)
        if found is not None:
            verb = {"web": web, "top": top}[found[0].verb]
            return verb(_Kubectl(kubectl), *found)
        call = plan(words)
    except Usage as error:
        print(f"kubectl-sluice: {error}" if words else str(error), file=sys.stderr)
        return EXIT_USAGE
    except Refused as refused:
        return refused.status
    except OSError as error:
        print(f"kubectl-sluice: {kubectl}: {error.strerror}", file=sys.stderr)
        return EXIT_MISSING
    except KeyboardInterrupt:
        return 130
    try:
        done = subprocess.run(
            [kubectl, *call.words],
            input=call.given if call.given else None,
            stdout=subprocess.PIPE if call.reads else None,
            text=True,
            check=False,
        )
    except OSError as error:
        print(f"kubectl-sluice: {kubectl}: {error.strerror}", file=sys.stderr)
        return EXIT_MISSING
    if done.returncode or not call.reads:
        return done.returncode
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        print("kubectl-sluice: kubectl's output is not JSON", file=sys.stderr)
        return 1
    if call.reads == "pending":
        lines = pending_lines(answer)
    else:
        options, _ = make_parser().parse_known_args(words)
        lines = workload_lines(answer, options, now())
    print("\n".join(lines))
    return 0


class _Kubectl:
    """Runs kubectl. Every method raises OSError if it is not found."""

    def __init__(self, command: str) -> None:
        self._command = command

    def read(self, *words: str) -> Any:
        done = subprocess.run([self._command, *words], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise Refused(done.returncode)
        try:
            found = json.loads(done.stdout)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            print("kubectl-sluice: kubectl's output is not a JSON object", file=sys.stderr)
            raise Refused(1)
        return found

    def ask(self, *words: str) -> str | None:
        done = subprocess.run([self._command, *words], capture_output=True, text=True)
        return None if done.returncode else done.stdout

    def become(self, *words: str) -> int:
        return subprocess.run([self._command, *words]).returncode


if __name__ == "__main__":
    sys.exit(main())
