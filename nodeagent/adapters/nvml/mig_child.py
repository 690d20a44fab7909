"""The process that changes MIG instances: reads one line of JSON with a request, answers with one
line, and ends.

It is separate from the reader of `child`, which must not exist while the mode changes, because the
driver counts it as a user of the card. Started as `python -m nodeagent.adapters.nvml.mig_child
[LIBRARY]`. It is killed with its parent; the next one reports what state it left.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from nodeagent.adapters.host.children import die_with_parent
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.cutter import Cutter, reason_of
from nodeagent.ports.mig import MigEdit
from nodeagent.units import GpuUuid
from sluicecommon.plain import read_plain, write_all_fields


def answer(request: Any, library: str | None) -> Any:
    """{"states": …} or {"outcome": …}; {"error": …} if NVML fails before anything was changed."""
    try:
        cutter = Cutter(library)
        if request["do"] == "states":
            return {"states": write_all_fields(cutter.states())}
        if request["do"] == "edit":
            edit: MigEdit = read_plain(MigEdit, request["edit"])
            return {"outcome": write_all_fields(cutter.edit(edit.gpu, edit.remove, edit.make))}
        wanted = request["wanted"]
        profiles = None if wanted is None else tuple(wanted)
        return {"outcome": write_all_fields(cutter.change(GpuUuid(request["gpu"]), profiles))}
    except pynvml.NVMLError as error:
        return {"error": reason_of(error)}
    except OSError as error:
        return {"error": f"NVML cannot be loaded: {error}"}


def main() -> int:
    die_with_parent()
    # Ctrl-C in a terminal must not end it before the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # A library that prints must not break the protocol.
    request = json.loads(sys.stdin.readline())
    answers.write(json.dumps(answer(request, sys.argv[1] if len(sys.argv) > 1 else None)) + "\n")
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
