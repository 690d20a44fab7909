"""The child that sets the driver's memory limits, at the end of its daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys


def test_the_end_of_the_daemon_is_no_traceback() -> None:
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "nodeagent.adapters.nvml.walls_child", "/no/library"],
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        os.close(write)
        os.close(read)  # Nothing receives the answer any more.
        _, said = child.communicate(json.dumps({"do": "missing", "gpus": []}) + "\n", timeout=60)
    assert (child.returncode, said) == (0, "")
