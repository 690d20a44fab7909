"""Authorization: pure values and one table of rights. Adapters establish the identities."""

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
