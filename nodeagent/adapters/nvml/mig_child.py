"""The process that cuts cards: one line of JSON in (what to do), one out, and it ends.

Apart from the reader of `nvml_child`, which must be gone while the mode changes: the driver counts
it as a user of the card. Started as `python -m nodeagent.adapters.nvml.mig_child [LIBRARY]`; it is
killed with its parent, and what it left is told by the next one.
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
    """{"states": …} or {"outcome": …}; {"error": …} when NVML says no before anything is done."""
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the daemon decides, not the terminal
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    request = json.loads(sys.stdin.readline())
    answers.write(json.dumps(answer(request, sys.argv[1] if len(sys.argv) > 1 else None)) + "\n")
    answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
