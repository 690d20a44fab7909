"""The first process of a grant whose others are killed: starts what its input names, and reaps it.

One command on standard input starts one more; its pid is the answer.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        process = subprocess.Popen(shlex.split(line), stdout=subprocess.DEVNULL)
        process.returncode = 0  # no parent waits for it
        print(process.pid, flush=True)


if __name__ == "__main__":
    main()
