"""Children are as isolated as the daemon."""

from __future__ import annotations

import json
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
