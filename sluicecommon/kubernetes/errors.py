"""How a call to the API server fails: it said no, or nobody answered."""

from __future__ import annotations

from typing import Final

GONE: Final = 410


class ApiAway(Exception):
    """No answer, or none that can be read: nothing is known, least of all that the call was not
    carried out."""


class ApiRefused(Exception):
    """The API server's own word."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        """As in a Status object: NotFound, Conflict, AlreadyExists, Expired, Forbidden."""
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """Somebody changed the object meanwhile, or made it before us."""
        return self.status == 409

    @property
    def denied(self) -> bool:
        """Not allowed, and no repetition changes that."""
        return self.status in (401, 403)
