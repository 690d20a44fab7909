"""Mapping of certificates, tokens and kernel credentials to roles, by the lists of the settings.

An authority assigns roles with URIs as alternative names: `sluice:user:ann`, `sluice:node:gpu-1`,
`sluice:admin:carol`, `sluice:check:budget`. The lists serve authorities that cannot write such
names. An empty list matches no name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from queuecontroller.state.access.identity import EVERY, Caller, Role

SCHEME: Final = "sluice"
LONGEST_NAME: Final = 253


@dataclass(frozen=True, slots=True)
class Names:
    """Exact names, and prefixes where the setting has a `*` at the end."""

    exact: frozenset[str] = frozenset()
    beginnings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Names:
        every = [one.strip() for one in text.split(",") if one.strip()]
        return cls(
            frozenset(one for one in every if not one.endswith("*")),
            tuple(one[:-1] for one in every if one.endswith("*")),
        )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (
            name in self.exact or any(name.startswith(one) for one in self.beginnings)
        )

    def __bool__(self) -> bool:
        return bool(self.exact or self.beginnings)


def parse_checks(text: str) -> Mapping[str, Names]:
    """Parse `budget=budget-bot, licence=licence-*`: the callers for each admission check. Raises
    ValueError naming the part."""
    found: dict[str, list[str]] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        check, equals, name = part.partition("=")
        if not (equals and check.strip() and name.strip()):
            raise ValueError(f"{part.strip()!r} is not CHECK=NAME")
        found.setdefault(check.strip(), []).append(name.strip())
    return {check: Names.parse(",".join(names)) for check, names in found.items()}


@dataclass(frozen=True, slots=True)
class RoleLists:
    """Lists of role names for certificates ([tls]) or tokens ([kubernetes])."""

    users: Names = Names()
    nodes: Names = Names()
    admins: Names = Names()
    checks: Mapping[str, Names] = field(default_factory=dict)

    def of_certificate(self, common_name: str, names: Iterable[str], uris: Iterable[str]) -> Caller:
        """Roles by a certificate. `names` are its alternative names that are not URIs."""
        every = [one for one in dict.fromkeys((common_name, *names)) if _usable(one)]
        given = _roles_in(uris)
        users = [*given[Role.USER], *(one for one in every if one in self.users)]
        admins = [*given[Role.ADMIN], *(one for one in every if one in self.admins)]
        nodes = {*given[Role.NODE], *(one for one in every if one in self.nodes)}
        checks = {*given[Role.CHECK], *self._checks_of(every)}
        shown = next(iter((*every, *users, *admins, *sorted(nodes), *sorted(checks))), "no name")
        return Caller(
            # An admin submits under its own name as well.
            user=next(iter((*users, *admins)), ""),
            admin=bool(admins),
            nodes=frozenset(nodes),
            checks=frozenset(checks),
            shown=shown,
        )

    def of_token(self, name: str, groups: Iterable[str], node: str) -> Caller:
        """Roles by a TokenReview with `name` and `groups`; `node` is its claim of the node on which
        the token's pod runs. The lists have groups as `group:NAME`."""
        every = [one for one in (name, *(f"group:{group}" for group in groups)) if _usable(one)]
        admin = any(one in self.admins for one in every)
        speaks_for_nodes = name in self.nodes
        is_node = bool(node) and speaks_for_nodes
        user = name if not is_node and (admin or any(one in self.users for one in every)) else ""
        return Caller(
            user=user,
            admin=admin,
            nodes=frozenset({node}) if is_node else frozenset(),
            checks=frozenset(self._checks_of(every)),
            shown=f"{name}, whose token is bound to no pod on a node,"
            if speaks_for_nodes and not node
            else name or "no name",
        )

    def _checks_of(self, names: Iterable[str]) -> set[str]:
        return {
            check for check, allowed in self.checks.items() for name in names if name in allowed
        }

    def empty(self) -> list[str]:
        """Names of the empty lists, for the log."""
        lists: dict[str, object] = {
            "users": self.users,
            "nodes": self.nodes,
            "admins": self.admins,
            "checks": self.checks,
        }
        return [name for name, found in lists.items() if not found]


def of_kernel(uid: int, name: str, owner_uid: int) -> Caller:
    """Roles by the credentials of a Unix socket. Root and the controller's own user can read and
    write the database anyway: they are admin, and may act as any node's daemon."""
    trusted = uid in (0, owner_uid)
    return Caller(
        user=name,
        admin=trusted,
        nodes=frozenset({EVERY}) if trusted else frozenset(),
        shown=f"{name} (uid {uid})",
    )


def _roles_in(uris: Iterable[str]) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {role: [] for role in Role}
    for uri in uris:
        scheme, _, rest = uri.partition(":")
        role, _, name = rest.partition(":")
        if scheme == SCHEME and role in set(Role) and _usable(name) and name != EVERY:
            found[Role(role)].append(name)
    return found


def _usable(name: str) -> bool:
    """True if the name is safe in a log line and in a comma-separated list."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable() and "," not in name
