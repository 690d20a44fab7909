"""A tenant's process registers with its grant: the answer, who decides it, and who lets it in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nodeagent.ports.processes import ProcessHandle
from nodeagent.ports.regions import FIRST_SLOT
from nodeagent.units import (
    GrantId,
    SlotIndex,
)


@dataclass(frozen=True, slots=True)
class RegisterAnswer:
    error: int = 0
    """0, or a positive errno as register.h lists them."""
    slot: SlotIndex = FIRST_SLOT
    generation: int = 0


class Registrar(Protocol):
    """Answers a tenant process; the daemon's shell implements it."""

    def register(
        self, grant: GrantId, handle: ProcessHandle, claimed_slot: SlotIndex | None
    ) -> RegisterAnswer: ...
    def hung_up(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """The tenant's end of the socket closed: a hint, not a proof, that the process is gone."""


class RegistrationListener(Protocol):
    """Listens on the registration sockets of grants."""

    def open(self, grant: GrantId, directory: str, uid: int, pod_uid: str = "") -> None:
        """Lets in processes of `uid`; with a pod, any user's that are not of another pod."""

    def shut(self, grant: GrantId) -> None: ...
