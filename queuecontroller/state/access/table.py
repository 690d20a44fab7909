"""The table of rights: the actions that each role may take, and on whose objects.

No other code decides this. docs/security.md shows the table, and a test calls every method in every
role with the caller's own and others' objects and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from queuecontroller.state.access.identity import Caller, Role


class Reach(StrEnum):
    NO = "no"
    OWN = "own"
    """Own objects. User: what it submitted. Node: what was submitted or placed there. Check:
    itself."""
    ALL = "all"


class Act(StrEnum):
    """Action of a call; one call may take several."""

    SESSION = "act as a node"
    SUBMIT = "submit a workload"
    SUBMIT_AS = "submit for another user"
    CHANGE_WORKLOAD = "apply over, delete, hold or resume a workload"
    SET_PRIORITY = "set a priority without a class"
    SET_CHECK = "set the result of an admission check"
    SET_STATUS = "set the rest of a workload's status, its UID and creation time"
    CHANGE_OBJECTS = "apply, delete, hold or resume queues, flavors and other objects"
    DELETE_NODE = "delete a node"
    SEE_WORKLOAD = "see a workload, why it is pending, its history"
    SEE_COMMAND = "see a workload's command line"
    LIST = "list and watch objects, see those other than workloads"
    SEE_SERVER = "see the service's version and state"


_NO, _OWN, _ALL = Reach.NO, Reach.OWN, Reach.ALL


def _row(user: Reach, node: Reach, check: Reach, admin: Reach) -> Mapping[Role, Reach]:
    return MappingProxyType(
        {Role.USER: user, Role.NODE: node, Role.CHECK: check, Role.ADMIN: admin}
    )


TABLE: Final[Mapping[Act, Mapping[Role, Reach]]] = MappingProxyType(
    {
        # Admins lack this right: ending any job does not require forging a node's reports.
        Act.SESSION: _row(_NO, _OWN, _NO, _NO),
        Act.SUBMIT: _row(_OWN, _OWN, _NO, _ALL),
        # A node names the user by its own kernel; docs/security.md has the trust this needs.
        Act.SUBMIT_AS: _row(_NO, _OWN, _NO, _ALL),
        Act.CHANGE_WORKLOAD: _row(_OWN, _OWN, _NO, _ALL),
        Act.SET_PRIORITY: _row(_NO, _NO, _NO, _ALL),
        Act.SET_CHECK: _row(_NO, _NO, _OWN, _ALL),
        Act.SET_STATUS: _row(_NO, _NO, _NO, _ALL),
        Act.CHANGE_OBJECTS: _row(_NO, _NO, _NO, _ALL),
        Act.DELETE_NODE: _row(_NO, _NO, _NO, _ALL),
        Act.SEE_WORKLOAD: _row(_ALL, _OWN, _ALL, _ALL),
        Act.SEE_COMMAND: _row(_OWN, _OWN, _NO, _ALL),
        Act.LIST: _row(_ALL, _NO, _ALL, _ALL),
        Act.SEE_SERVER: _row(_ALL, _ALL, _ALL, _ALL),
    }
)

METHODS: Final[Mapping[str, tuple[Act, ...]]] = MappingProxyType(
    {
        "QueueNodes/Connect": (Act.SESSION,),
        "QueueNodes/Report": (Act.SESSION,),
        "QueueNodes/WatchDecisions": (Act.SESSION,),
        "QueueNodes/Confirm": (Act.SESSION,),
        "QueueNodes/Release": (Act.SESSION,),
        "QueueNodes/Tell": (Act.SESSION,),
        "QueueNodes/FollowWaiting": (Act.SESSION,),
        "Queues/Apply": (
            Act.SUBMIT,
            Act.CHANGE_WORKLOAD,
            Act.SET_PRIORITY,
            Act.SET_CHECK,
            Act.SET_STATUS,
            Act.CHANGE_OBJECTS,
        ),
        "Queues/Submit": (Act.SUBMIT, Act.SUBMIT_AS),
        "Queues/Get": (Act.SEE_WORKLOAD, Act.SEE_COMMAND, Act.LIST),
        "Queues/List": (Act.LIST, Act.SEE_COMMAND),
        "Queues/Watch": (Act.LIST, Act.SEE_COMMAND),
        "Queues/Follow": (Act.SEE_WORKLOAD,),
        "Queues/Explain": (Act.SEE_WORKLOAD, Act.SEE_COMMAND),
        "Queues/Delete": (Act.CHANGE_WORKLOAD, Act.CHANGE_OBJECTS, Act.DELETE_NODE),
        "Queues/Hold": (Act.CHANGE_WORKLOAD, Act.CHANGE_OBJECTS),
        "Queues/Resume": (Act.CHANGE_WORKLOAD, Act.CHANGE_OBJECTS),
        "Queues/GetServer": (Act.SEE_SERVER,),
        "Queues/OpenPage": (Act.LIST,),
    }
)
"""Actions that each method may take, depending on the request."""


@dataclass(frozen=True, slots=True)
class Target:
    """Owners of the object of an action."""

    user: str = ""
    nodes: frozenset[str] = frozenset()
    check: str = ""


UNOWNED: Final = Target()


class Denied(Exception):
    """Raised if a caller lacks a right; the text names the caller, the action and the roles that
    may take it."""


def may(caller: Caller, act: Act, target: Target | None = None) -> bool:
    """True if the caller may act on the target; None is no particular object, as for a list."""
    reaches = TABLE[act]
    for role in caller.roles:
        reach = reaches[role]
        if reach is Reach.ALL or (reach is Reach.OWN and _owns(caller, role, target or UNOWNED)):
            return True
    return False


def _owns(caller: Caller, role: Role, owners: Target) -> bool:
    if role is Role.USER:
        return bool(caller.user) and caller.user == owners.user
    if role is Role.NODE:
        return any(caller.is_node(name) for name in owners.nodes)
    return role is Role.CHECK and owners.check in caller.checks


def check(caller: Caller, act: Act, target: Target | None = None, what: str = "") -> None:
    """Check a right; `what` names the object for the error text. Raises Denied."""
    if may(caller, act, target):
        return
    if not caller.roles:
        raise Denied(
            f"{caller.shown} has no role here: assign one in its certificate or in a list of"
            " the settings (docs/security.md)"
        )
    roles = {role: reach for role, reach in TABLE[act].items() if reach is not Reach.NO}
    needed = " or ".join(
        {"user": "its user", "node": "its node"}.get(role, role) if reach is Reach.OWN else role
        for role, reach in roles.items()
    )
    subject = f" ({what})" if what else ""
    held = ", ".join(sorted(caller.roles))
    raise Denied(f"{caller.shown} ({held}) may not {act}{subject}: this requires {needed}")
