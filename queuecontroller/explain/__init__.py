"""Why a workload waits and what would have to change. Looks, and changes nothing."""

from .explanation import Explanation, explain
from .shortages import Candidate, Shortage

__all__ = ["Candidate", "Explanation", "Shortage", "explain"]
