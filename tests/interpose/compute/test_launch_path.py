"""Instructions of the common launch, counted in the machine code: a time would depend on what else the machine does."""

from __future__ import annotations

import platform
import re
import subprocess
from types import MappingProxyType

import pytest

from tests.interpose import regions

CALLS = ("cuLaunchKernel", "cuLaunchKernel_ptsz", "cuLaunchKernelEx", "cuLaunchKernelEx_ptsz")
SAVED = 0
"""Registers that such a call may save; gcc saved six, and loaded and stored five arguments that are where they belong."""
INSTRUCTIONS = MappingProxyType({"cuLaunchKernel": 44, "cuLaunchKernelEx": 54})
"""gcc 12 needs 37 and 46; with the cost and its key in two words, and a register too few, 52 and 59."""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="counts x86-64's instructions"
)


def instructions(function: str) -> list[str]:
    """The function's part for a launch that is charged already: it ends with the jump to the driver."""
    done = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", f"--disassemble={function}", regions.SHIM],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.findall(r"^ +[0-9a-f]+:\t(.+)$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    (end,) = (i for i, one in enumerate(found) if re.match(r"(notrack )?jmp +\*", one))
    return found[: end + 1]


@pytest.mark.parametrize("function", CALLS)
def test_the_common_launch_leaves_its_arguments_in_place_and_jumps_to_the_driver(
    function: str,
) -> None:
    path = instructions(function)
    call = function.removesuffix("_ptsz")
    assert len(path) <= INSTRUCTIONS[call], path
    assert sum(one.startswith("push") for one in path) <= SAVED, path
    assert not [one for one in path if re.search(r"\b(call|lock|xchg|div|mul)", one)], path
    stored = [one for one in path if re.match(r"mov\w* .*,(0x[0-9a-f]+)?\(%rsp\)$", one)]
    assert not stored, "arguments on the stack are stored again"
