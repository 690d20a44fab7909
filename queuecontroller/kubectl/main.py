"""`kubectl-sluice`, which kubectl runs for `kubectl sluice …`.

Exit status: kubectl's own; 2 bad usage, 69 there is no kubectl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from queuecontroller.cli.tables import now
from queuecontroller.kubectl.plan import Usage, make_parser, plan
from queuecontroller.kubectl.tables import pending_lines, workload_lines

EXIT_USAGE: Final = 2
EXIT_MISSING: Final = 69


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        call = plan(words)
    except Usage as error:
        print(f"kubectl-sluice: {error}" if words else str(error), file=sys.stderr)
        return EXIT_USAGE
    kubectl = os.environ.get("KUBECTL", "kubectl")
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
        print("kubectl-sluice: the answer is no JSON", file=sys.stderr)
        return 1
    if call.reads == "pending":
        lines = pending_lines(answer)
    else:
        options, _ = make_parser().parse_known_args(words)
        lines = workload_lines(answer, options, now())
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
