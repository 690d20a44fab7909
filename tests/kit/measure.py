"""GPU time measured on a machine that does other things, too.

A job that waits for a CPU launches nothing, and its share falls for a reason that is not ours. So the jobs measured go
before everything else on the machine where that is allowed (root; measured with eleven others per pair of cores: 0.30
and 0.70 instead of 0.20 and 0.58), and where it is not, a figure out of its margin is measured again: what else runs
can only make it worse.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

TRIES = 3


def ahead(pid: int) -> None:
    """The process, and the threads it will have, get a CPU whenever they want one, as far as we may say so.

    SCHED_RR at its lowest priority, see sched(7): after the kernel's own threads, and 95 % of a second at most."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


def within(limit_s: float, measure: Callable[[], float]) -> None:
    """One of TRIES times that `measure` gives is within the limit, in seconds."""
    seen: list[float] = []
    for _ in range(TRIES):
        seen.append(measure())
        if seen[-1] <= limit_s:
            return
    raise AssertionError(f"not within {limit_s:g} s: {seen}")


def shares(
    measure: Callable[[], Sequence[float]],
    wanted: Sequence[float],
    margin: float,
    capped: bool = True,
) -> None:
    """`measure` gives the wanted shares (0 to 1, ± `margin`) within TRIES tries; where they are `capped` none of
    the tries may give more. Raises AssertionError with everything that was measured."""
    seen: list[Sequence[float]] = []
    for _ in range(TRIES):
        got = measure()
        seen.append(got)
        assert len(got) == len(wanted)
        pairs = list(zip(got, wanted, strict=True))
        if capped:
            assert all(one <= want + margin for one, want in pairs), f"more than {wanted}: {seen}"
        if all(abs(one - want) <= margin for one, want in pairs):
            return
    raise AssertionError(f"wanted {wanted} ± {margin}, measured {seen}")
