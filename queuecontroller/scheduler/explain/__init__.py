"""Explanations why a workload is pending and what would have to change; read-only."""

from queuecontroller.scheduler.explain.explanation import Explanation, explain
from queuecontroller.scheduler.explain.shortages import Candidate, Shortage

__all__ = ["Candidate", "Explanation", "Shortage", "explain"]
