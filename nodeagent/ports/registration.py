"""Registration of a tenant's process with its grant: the answer, the registrar that decides it, and
the listener on the sockets."""

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
    """0, or a positive errno listed in register.h."""
    slot: SlotIndex = FIRST_SLOT
    generation: int = 0


class Registrar(Protocol):
    """Answers a tenant process; the daemon's shell implements it."""

    def register(
        self, grant: GrantId, handle: ProcessHandle, claimed_slot: SlotIndex | None
    ) -> RegisterAnswer: ...
    def reply_unread(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """The tenant closed its end of the socket before it had read the reply, so it does not know
        the slot: a process that waited too long has taken one by itself."""

    def hung_up(self, grant: GrantId, slot: SlotIndex, generation: int) -> None:
        """The tenant's end of the socket closed: a hint, not a proof, that the process is gone."""


class RegistrationListener(Protocol):
    """Listens on the registration sockets of grants."""

    def open(self, grant: GrantId, directory: str, uid: int, pod_uid: str = "") -> None:
        """Accept processes of `uid`; with a pod, those of any user that do not belong to another
        pod."""

    def shut(self, grant: GrantId) -> None: ...
