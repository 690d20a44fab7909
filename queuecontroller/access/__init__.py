"""Who may what: pure values and one table; where identities come from is the adapters' business."""

from .identity import Caller, Role
from .lists import Names, RoleLists
from .table import METHODS, TABLE, Act, Denied, Reach, Target, check, may

__all__ = [
    "METHODS",
    "TABLE",
    "Act",
    "Caller",
    "Denied",
    "Names",
    "Reach",
    "Role",
    "RoleLists",
    "Target",
    "check",
    "may",
]
