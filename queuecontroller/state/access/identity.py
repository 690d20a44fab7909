"""Identity of a caller, as a set of roles.

A role comes from a party that the caller does not control: the authority that signed its
certificate, Kubernetes' TokenReview, or the kernel for a Unix socket. A caller without a role has
no rights.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

EVERY: Final = "*"
"""Name that matches any node. Root on the controller's own machine has it."""


class Role(StrEnum):
    USER = "user"
    NODE = "node"
    ADMIN = "admin"
    CHECK = "check"
    """Controller of an admission check, which decides whether a workload may start."""


@dataclass(frozen=True, slots=True)
class Caller:
    user: str = ""
    """Name under which it submits; empty if it is not a user."""
    admin: bool = False
    nodes: frozenset[str] = frozenset()
    checks: frozenset[str] = frozenset()
    shown: str = "nobody"
    """Name for messages from the certificate, token or uid; present without a role as well."""

    @property
    def roles(self) -> frozenset[Role]:
        return _roles(self.admin, bool(self.nodes), bool(self.checks), bool(self.user))

    @property
    def key(self) -> str:
        """One key per identity, for limits per caller."""
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
"""Caller with direct access to the database: offline tools on the controller's files, and tests."""
