"""Kueue's objects as an API: one table of their fields, the definitions made from it, and the
conversion between the versions.

Pure: documents in, documents out. The manifest reader checks by the same table.
"""

from queuecontroller.kueueapi.table import GROUP, KINDS

__all__ = ["GROUP", "KINDS"]
