"""Authenticates a token by a TokenReview of the API server that issued it.

The client needs only `create` on `tokenreviews.authentication.k8s.io` (in ClusterRole
system:auth-delegator). A token may be revoked with its pod at any time, so cache an answer for at
most a minute.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.kubernetes.resources import TOKEN_REVIEWS

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""Key in `extra` for the node of the pod that a token is bound to (Kubernetes 1.30 and later)."""
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Review:
    authenticated: bool
    username: str = ""
    """User name; a pod's is system:serviceaccount:NAMESPACE:NAME."""
    uid: str = ""
    groups: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    """The requested audiences that the token has."""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""

    def claim(self, key: str) -> str:
        """The value of `extra` with this key; empty unless there is exactly one."""
        values = self.extra.get(key, ())
        return values[0] if len(values) == 1 else ""


async def review(client: ApiClient, token: str, audiences: Sequence[str]) -> Review:
    """Review a token. With `audiences`, a token with none of them is not authenticated, whatever
    the API server's own audience. Raises ApiRefused (no right to review), ApiAway."""
    answer = await client.create(
        TOKEN_REVIEWS,
        {
            "apiVersion": TOKEN_REVIEWS.api_version,
            "kind": TOKEN_REVIEWS.kind,
            "spec": {"token": token, "audiences": list(audiences)},
        },
    )
    return read_review(answer, audiences)


def read_review(document: Mapping[str, Any], audiences: Sequence[str]) -> Review:
    """The result in a TokenReview. Raises ApiAway for an answer of another form."""
    status = document.get("status")
    if not isinstance(status, Mapping):
        raise ApiAway("a TokenReview without status")
    if status.get("authenticated") is not True:
        return Review(False, error=str(status.get("error") or "the token is not valid"))
    user = status.get("user")
    if not isinstance(user, Mapping) or not isinstance(user.get("username"), str):
        raise ApiAway("a TokenReview without a user")
    extra = user.get("extra") or {}
    if not isinstance(extra, Mapping):
        raise ApiAway("a TokenReview whose extra is not a mapping")
    given = _texts(status.get("audiences"))
    # An API server without audience support omits them: the token is for the API server itself.
    if audiences and not set(audiences) & set(given):
        return Review(False, error=f"the token is for {', '.join(given) or 'no audience'}")
    return Review(
        True,
        user["username"],
        str(user.get("uid") or ""),
        _texts(user.get("groups")),
        tuple(one for one in audiences if one in given),
        {str(key): _texts(values) for key, values in extra.items()},
    )


def _texts(values: object) -> tuple[str, ...]:
    """The strings of a list field. Raises ApiAway."""
    if not isinstance(values or [], list):
        raise ApiAway("a TokenReview with a field that is not a list")
    found = values if isinstance(values, list) else []
    return tuple(one for one in found if isinstance(one, str))
