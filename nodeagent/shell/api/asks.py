"""Checks of a request that need no GPU."""

from __future__ import annotations

import re
from typing import Final

from nodeagent.ports.clients import GrantAsk, MemoryAsk, RefusalKind, Refused
from nodeagent.units import WHOLE_PPM, SharePolicy

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]{0,62}")
SMALLEST_SHARE_PPM: Final = WHOLE_PPM // 100
LONGEST_PATH_BYTES: Final = 511
LONGEST_COMMAND: Final = 256


def check_ask(ask: GrantAsk, max_wait_s: float) -> None:
    """Validate all of a request that can be checked without a GPU. Raises Refused."""
    problems = []
    if ask.name and not NAME.fullmatch(ask.name):
        problems.append(
            "a name has up to 63 letters, digits and _.:/@-, and starts with one of the first two"
        )
    if not 0 <= ask.wait_s <= max_wait_s:
        problems.append(f"waiting is possible for 0 to {max_wait_s:g} s")
    for path in (ask.driver_path, ask.nvml_path):
        if path and (
            not path.startswith("/")
            or "\0" in path
            or len(path.encode(errors="surrogateescape")) > LONGEST_PATH_BYTES
        ):
            problems.append(
                f"a driver path is absolute and at most {LONGEST_PATH_BYTES} bytes long"
            )
    if len(ask.command) > LONGEST_COMMAND or not ask.command.isprintable():
        problems.append(
            f"a command line is shown in at most {LONGEST_COMMAND} printable characters"
        )
    if ask.policy is SharePolicy.EXCLUSIVE and ask.share_ppm != WHOLE_PPM:
        problems.append("an exclusive grant has all of the GPU's time: leave --cores out")
    if ask.trusted_group and not NAME.fullmatch(ask.trusted_group):
        problems.append("a trusted group's name is like a grant's")
    if ask.trusted_group and (ask.queue is not None or ask.policy is SharePolicy.EXCLUSIVE):
        problems.append("a trusted group is not for the queue, and has no exclusive grants")
    if problems:
        raise Refused(RefusalKind.INVALID, "; ".join(problems))
    check_memory(ask.memory)
    if ask.request is not None:
        check_memory(ask.request)
        _check_request(ask.request, ask.memory)
        if ask.queue is not None:
            raise Refused(
                RefusalKind.INVALID, "the queue gives whole limits: leave --gpumem-request out"
            )
    check_share(ask.share_ppm)


def _check_request(request: MemoryAsk, limit: MemoryAsk) -> None:
    """Raise Refused if request and limit are in the same unit and the request is larger; placement
    caps it otherwise."""
    amounts = (request.amount_bytes, limit.amount_bytes)
    parts = (request.part_ppm, limit.part_ppm)
    for one, other in (amounts, parts):
        if one is not None and other is not None and one > other:
            raise Refused(RefusalKind.INVALID, "--gpumem-request is more than --gpumem, its limit")


def check_memory(memory: MemoryAsk) -> None:
    amount, part = memory.amount_bytes, memory.part_ppm
    if (amount is None) == (part is None):
        raise Refused(RefusalKind.INVALID, "memory is an amount or a part, one of the two")
    if amount is not None and not 1 << 20 <= amount <= 1 << 53:
        raise Refused(RefusalKind.INVALID, "memory is at least 1 MiB and at most 8 PiB")
    if part is not None and not 0 < part <= WHOLE_PPM:
        raise Refused(RefusalKind.INVALID, "a part of the memory is above 0 and at most the whole")


def check_share(share_ppm: int) -> None:
    if not SMALLEST_SHARE_PPM <= share_ppm <= WHOLE_PPM:
        raise Refused(RefusalKind.INVALID, "a share of the GPU's time is 1 to 100 percent")
