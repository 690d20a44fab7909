"""Who may what: pure values and one table; where identities come from is the adapters' business."""

from queuecontroller.state.access.identity import Caller, Role
from queuecontroller.state.access.lists import Names, RoleLists
from queuecontroller.state.access.table import (
    METHODS,
    TABLE,
    Act,
    Denied,
    Reach,
    Target,
    check,
    may,
)

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
