"""Whose token is this? Asked of the API server that issued it (TokenReview).

The caller needs `create` on `tokenreviews.authentication.k8s.io` (ClusterRole system:auth-delegator
has it) and nothing else. An answer holds for the moment: a token may be revoked with its pod, so
whoever keeps one keeps it for a minute at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.kubernetes.resources import TOKEN_REVIEWS

NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""In `extra` of a token that is bound to a pod: the pod's node (Kubernetes 1.30 and later)."""
POD_NAME: Final = "authentication.kubernetes.io/pod-name"
POD_UID: Final = "authentication.kubernetes.io/pod-uid"


@dataclass(frozen=True, slots=True)
class Review:
    authenticated: bool
    username: str = ""
    """system:serviceaccount:NAMESPACE:NAME for a pod."""
    uid: str = ""
    groups: tuple[str, ...] = ()
    audiences: tuple[str, ...] = ()
    """Those of ours that the token is for."""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    error: str = ""

    def claim(self, key: str) -> str:
        """Of `extra`, where there is exactly one value; empty otherwise."""
        values = self.extra.get(key, ())
        return values[0] if len(values) == 1 else ""


async def review(client: ApiClient, token: str, audiences: Sequence[str]) -> Review:
    """Raises ApiRefused (we may not ask), ApiAway. With `audiences`, a token that is for none of
    them is not authenticated, whatever the API server's own audience."""
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
    """Raises ApiAway for an answer of another form: it authenticates nobody."""
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
        raise ApiAway("a TokenReview with something else in the place of extra")
    given = _texts(status.get("audiences"))
    # An API server that knows no audiences leaves them out: the token is for itself, not for us.
    if audiences and not set(audiences) & set(given):
        return Review(False, error=f"the token is for {', '.join(given) or 'nobody named'}")
    return Review(
        True,
        user["username"],
        str(user.get("uid") or ""),
        _texts(user.get("groups")),
        tuple(one for one in audiences if one in given),
        {str(key): _texts(values) for key, values in extra.items()},
    )


def _texts(values: object) -> tuple[str, ...]:
    """Raises ApiAway."""
    if not isinstance(values or [], list):
        raise ApiAway("a TokenReview with something else in the place of a list")
    found = values if isinstance(values, list) else []
    return tuple(one for one in found if isinstance(one, str))
