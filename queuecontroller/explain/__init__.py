"""What would have to change for a workload that waits. Looks, and changes nothing."""

from .remedies import Shortage, remedies, shortages

__all__ = ["Shortage", "remedies", "shortages"]
