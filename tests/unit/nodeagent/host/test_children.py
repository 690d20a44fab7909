"""Children are as isolated as the daemon, and survive its end without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import json
from nodeagent.adapters.host.children import python_child
print(json.dumps(python_child("some.module", "argument")[1:]))
"""


@pytest.mark.parametrize("flags", [[], ["-I"]], ids=["in a checkout", "installed"])
def test_a_child_is_started_with_the_isolation_of_its_parent(flags: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, *flags, "-c", SCRIPT], check=True, capture_output=True, text=True
    ).stdout
    assert json.loads(said) == [*flags, "-m", "some.module", "argument"]


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
