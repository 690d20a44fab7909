"""Who is at the other end of a call, by its certificate, and what it may do.

Without mutual TLS nobody has a name and everybody may everything: that is for loopback and for
trusted networks, as docs/queue.md says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from queuecontroller.service.submission import Refused


@dataclass(frozen=True, slots=True)
class Caller:
    names: frozenset[str] = frozenset()
    """Common name and alternative names of the certificate."""
    named: bool = False
    """Whether certificates are asked for at all."""

    @property
    def shown(self) -> str:
        return min(self.names, default="") if self.named else ""


@dataclass(frozen=True, slots=True)
class Permissions:
    mutual: bool = False
    admins: frozenset[str] = frozenset()

    def caller(self, context: Any) -> Caller:
        if not self.mutual:
            return Caller()
        found = context.auth_context()
        names = [
            raw.decode(errors="replace")
            for name in ("x509_common_name", "x509_subject_alternative_name")
            for raw in found.get(name, ())
        ]
        return Caller(frozenset(names), True)

    def as_node(self, caller: Caller, node: str) -> None:
        """A node speaks for itself only. Raises Refused."""
        if not node:
            raise Refused("invalid", "node: is missing")
        if caller.named and node not in caller.names:
            known = ", ".join(sorted(caller.names)) or "no name"
            raise Refused("denied", f"the certificate is for {known}, not for node {node}")

    def as_admin(self, caller: Caller, what: str) -> None:
        if caller.named and self.admins and not caller.names & self.admins:
            known = ", ".join(sorted(caller.names)) or "no name"
            raise Refused("denied", f"{known} may not {what}: not in tls.admins")

    def as_owner(self, caller: Caller, user: str, node: str, what: str) -> None:
        """The submitter, the node it was submitted on, or an admin."""
        if not caller.named or user in caller.names or (node and node in caller.names):
            return
        self.as_admin(caller, what)
