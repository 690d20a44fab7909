"""Why a workload waits and what would have to change. Looks, and changes nothing."""

from queuecontroller.scheduler.explain.explanation import Explanation, explain
from queuecontroller.scheduler.explain.shortages import Candidate, Shortage

__all__ = ["Candidate", "Explanation", "Shortage", "explain"]
