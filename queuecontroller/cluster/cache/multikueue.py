"""Settings of MultiKueue, with Kueue's names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuecontroller.frameworks.names import MULTIKUEUE

CONTROLLER: Final = MULTIKUEUE
"""Controller of an AdmissionCheck, and managedBy of a job that may run in a worker."""
DISPATCHER: Final = "kueue.x-k8s.io/multikueue-dispatcher"
ALL_AT_ONCE: Final = f"{DISPATCHER}-all-at-once"
INCREMENTAL: Final = f"{DISPATCHER}-incremental"
ROUND_S: Final = 300.0
"""Seconds after which the incremental dispatcher nominates further workers."""
ROUND: Final = 3
"""Number of workers that it nominates in a round."""
PREEMPTION_GATE: Final = MULTIKUEUE
"""Preemption gate of a copy that its manager opens."""
ONE_AT_A_TIME_S: Final = 300.0
"""Seconds after which a gate is opened in the next worker."""
KUBECONFIG_KEY: Final = "kubeconfig"
KUBECONFIGS: Final = Path("/etc/multikueue/kubeconfigs")
"""The only directory from which kubeconfig files are read."""


@dataclass(frozen=True, slots=True)
class MultiKueueSettings:
    gc_interval_s: float = 60.0
    """Seconds between two searches for orphans in the workers; 0: none."""
    origin: str = "multikueue"
    worker_lost_s: float = 900.0
    """Seconds that a worker may be unreachable until its workloads are dispatched again."""
    dispatcher: str = ALL_AT_ONCE
    """ALL_AT_ONCE, INCREMENTAL, or the name of another controller that nominates workers."""
    gates_preemption: bool = True
    """True if copies may preempt in one worker at a time."""
    kubeconfigs: Path = KUBECONFIGS
