"""Errors of a call to the API server: it refused the call, or did not answer."""

from __future__ import annotations

from typing import Final

GONE: Final = 410


class ApiAway(Exception):
    """No answer, or one that cannot be parsed; the call may or may not have been carried out."""


class ApiRefused(Exception):
    """The API server refused the call."""

    def __init__(
        self, status: int, reason: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status = status
        self.reason = reason
        """Reason of the Status: NotFound, Conflict, AlreadyExists, Expired, Forbidden."""
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def not_found(self) -> bool:
        return self.status == 404

    @property
    def conflict(self) -> bool:
        """True if the object was changed or created by another client meanwhile."""
        return self.status == 409

    @property
    def outdated(self) -> bool:
        """True if the write was based on an old version: it may succeed on the next one."""
        return self.status == 409 and self.reason == "Conflict"

    @property
    def denied(self) -> bool:
        """True if the call is not permitted, so that retrying is useless."""
        return self.status in (401, 403)
