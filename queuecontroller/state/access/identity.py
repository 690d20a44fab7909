"""Who is at the other end of a call, in roles.

A role comes from somebody whom the caller does not control: the authority that signed its
certificate, Kubernetes' TokenReview, the kernel at the other end of a Unix socket. Who has none is
nobody, and nobody may nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

EVERY: Final = "*"
"""As a node's name: any node. Root on the controller's own machine has it."""


class Role(StrEnum):
    USER = "user"
    NODE = "node"
    ADMIN = "admin"
    CHECK = "check"
    """The controller of an admission check: a program that says whether a workload may start."""


@dataclass(frozen=True, slots=True)
class Caller:
    user: str = ""
    """The name it submits under; empty: it is no user."""
    admin: bool = False
    nodes: frozenset[str] = frozenset()
    checks: frozenset[str] = frozenset()
    shown: str = "nobody"
    """For messages: who it is by its certificate, token or uid, also without a role."""

    @property
    def roles(self) -> frozenset[Role]:
        return _roles(self.admin, bool(self.nodes), bool(self.checks), bool(self.user))

    @property
    def key(self) -> str:
        """One for each identity: what limits are counted by."""
        if self.user:
            return f"user {self.user}"
        if self.nodes:
            return f"node {min(self.nodes)}"
        return f"check {min(self.checks)}" if self.checks else self.shown

    def is_node(self, name: str) -> bool:
        return bool(name) and (name in self.nodes or EVERY in self.nodes)


@cache
def _roles(admin: bool, node: bool, check: bool, user: bool) -> frozenset[Role]:
    found = {Role.ADMIN: admin, Role.NODE: node, Role.CHECK: check, Role.USER: user}
    return frozenset(role for role, held in found.items() if held)


OPERATOR: Final = Caller(admin=True, shown="the operator")
"""Whoever holds the database itself: tools on the controller's own files, and tests."""
