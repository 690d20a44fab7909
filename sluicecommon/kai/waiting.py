"""KAI's preemption delay: how long a pending pod waits before others are evicted for it.

An autoscaler may add a node meanwhile. Source: docs of KAI-Scheduler, 0.17; first it was a label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sluicecommon.kubernetes.durations import parse_duration_ns
from sluicecommon.reader import shown

PREEMPTION_DELAY: Final = "kai.scheduler/preemption-delay"
MAX_S: Final = 7 * 24 * 3600


class WaitingError(ValueError):
    """The delay cannot be read; the text begins with its name."""


@dataclass(frozen=True, slots=True)
class Delay:
    key: str
    seconds: float
    """Since the pod's creation."""


def preemption_delay(annotations: Mapping[str, str], labels: Mapping[str, object]) -> Delay | None:
    """The delay in a pod's annotation, else in its label; None if it has none. Raises
    WaitingError."""
    text = annotations.get(PREEMPTION_DELAY, labels.get(PREEMPTION_DELAY))
    if text is None:
        return None
    try:
        seconds = parse_duration_ns(str(text).strip()) / 1e9
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_S:
        raise WaitingError(
            f"{PREEMPTION_DELAY}: expected a duration from 0s to 168h, such as 5m, got"
            f" {shown(text)}"
        )
    return Delay(PREEMPTION_DELAY, seconds)
