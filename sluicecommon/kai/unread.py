"""Reasons why KAI's annotations of a pod have no effect, where no webhook of Sluice changed it.

A pod without the resource `nvidia.com/gpu` never reaches a device plugin, so a node alone cannot
honour a fraction: it can only say what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sluicecommon.kai.fractions import FractionError, asking, check_sharing_mode, read_fraction
from sluicecommon.kai.waiting import PREEMPTION_DELAY

_WHERE: Final = "Sluice reads it in mode kubernetes (the chart's queue.mode)"


def unread_fraction(annotations: Mapping[str, str], containers: Sequence[str] | None = None) -> str:
    """Why the request for parts of GPUs has no effect, with what to write instead; empty if there
    is none. The first container is the one that is meant without a name; None: their names are
    unknown."""
    names = asking(annotations)
    if not names:
        return ""
    try:
        found = read_fraction(annotations, containers)
    except FractionError as error:
        return str(error)
    instead = f": write {found.instead}" if found is not None else ""
    return f"{', '.join(names)}: no effect on this pod, {_WHERE}{instead}"


def unread_words(
    annotations: Mapping[str, str], labels: Mapping[str, str], delays: bool
) -> list[str]:
    """Why a pod that has GPUs runs without other words of KAI's. `delays`: its scheduler honours
    the preemption delay."""
    found = []
    try:
        check_sharing_mode(annotations)
    except FractionError as error:
        found.append(str(error))
    if not delays and (PREEMPTION_DELAY in annotations or PREEMPTION_DELAY in labels):
        found.append(
            f"{PREEMPTION_DELAY}: no effect on this pod, {_WHERE}: take it out, or use a"
            " PriorityClass with preemptionPolicy: Never"
        )
    return found
