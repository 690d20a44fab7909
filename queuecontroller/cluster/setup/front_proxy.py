"""Authentication and authorization of requests through the API server's front proxy.

The API server forwards requests with a client certificate of its own authority and the caller's
name in headers, as configured in `extension-apiserver-authentication` in kube-system. The caller is
authorized by a SubjectAccessReview, which is cached for seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.kubernetes.resources import KUBE_SYSTEM, Resource

CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
AUTHENTICATION: Final = "extension-apiserver-authentication"
READER: Final = "extension-apiserver-authentication-reader"
"""Role in Kubernetes that permits reading it."""
REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
REMEMBERED_S: Final = 10.0
"""Seconds for which an authorization is cached, as in Kubernetes' extension servers."""
MAX_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """The API server's configuration of its front proxy."""

    authority: str
    """Certificate authority of its client certificate, in PEM."""
    names: tuple[str, ...] = ()
    """Common names that its certificate may have; empty: any."""
    user_headers: tuple[str, ...] = ("X-Remote-User",)
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ("X-Remote-Group",)
    extra_prefixes: tuple[str, ...] = ("X-Remote-Extra-",)

    def vouches(self, certificate: Mapping[str, Any] | None) -> bool:
        """Return True if a certificate that TLS has verified is the front proxy's."""
        if not certificate:
            return False
        if not self.names:
            return True
        subject = certificate.get("subject") or ()
        names = {value for part in subject for key, value in part if key == "commonName"}
        return bool(names & set(self.names))

    def user(self, headers: Iterable[tuple[str, str]]) -> User | None:
        """Return the user in the headers; None if there is none."""
        every = [(name.lower(), value) for name, value in headers]
        users = _of(every, self.user_headers)
        if not users:
            return None
        uids = _of(every, self.uid_headers)
        extra: dict[str, list[str]] = {}
        for prefix in self.extra_prefixes:
            for name, value in every:
                if name.startswith(prefix.lower()):
                    extra.setdefault(unquote(name[len(prefix) :]), []).append(value)
        return User(
            users[0],
            uids[0] if uids else "",
            tuple(_of(every, self.group_headers)),
            tuple((name, tuple(values)) for name, values in sorted(extra.items())),
        )


def _of(headers: Sequence[tuple[str, str]], names: Sequence[str]) -> list[str]:
    wanted = [one.lower() for one in names]
    return [value for name in wanted for header, value in headers if header == name and value]


def front_proxy(document: Mapping[str, Any]) -> FrontProxy | None:
    """Read the ConfigMap; None: this API server has no front proxy and forwards no requests."""
    data = document.get("data") or {}
    authority = str(data.get("requestheader-client-ca-file") or "")
    if "-----BEGIN CERTIFICATE-----" not in authority:
        return None
    default = FrontProxy(authority)
    return FrontProxy(
        authority,
        _list(data, "requestheader-allowed-names", ()),
        _list(data, "requestheader-username-headers", default.user_headers),
        _list(data, "requestheader-uid-headers", ()),
        _list(data, "requestheader-group-headers", default.group_headers),
        _list(data, "requestheader-extra-headers-prefix", default.extra_prefixes),
    )


def _list(data: Mapping[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    try:
        found = json.loads(data.get(key) or "null")
    except (ValueError, RecursionError):
        return default
    return tuple(map(str, found)) if isinstance(found, list) else default


async def read_front_proxy(client: ApiClient) -> FrontProxy | None:
    """Read the front proxy's configuration. Raises ApiAway, ApiRefused."""
    return front_proxy(await client.get(CONFIG_MAPS, AUTHENTICATION, KUBE_SYSTEM))


class Access:
    """Authorization of users by the API server."""

    def __init__(self, client: ApiClient, clock_s: Callable[[], float]) -> None:
        self._client = client
        self._clock_s = clock_s
        self._known: dict[tuple[User, tuple[tuple[str, str], ...]], tuple[float, str | None]] = {}

    async def why_not(self, user: User, attributes: Mapping[str, str]) -> str | None:
        """Return why a user may not; None if permitted. Raises ApiAway, ApiRefused."""
        key = (user, tuple(sorted(attributes.items())))
        now_s = self._clock_s()
        known = self._known.get(key)
        if known is not None and now_s < known[0]:
            return known[1]
        document = await self._client.create(REVIEWS, review(user, attributes))
        status = document.get("status")
        if not isinstance(status, Mapping):
            raise ApiAway("a SubjectAccessReview without status")
        allowed = status.get("allowed") is True and status.get("denied") is not True
        answer = None if allowed else str(status.get("reason") or "")
        if len(self._known) >= MAX_REMEMBERED:
            self._known.clear()
        self._known[key] = (now_s + REMEMBERED_S, answer)
        return answer


def review(user: User, attributes: Mapping[str, str]) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "user": user.name,
        "groups": list(user.groups),
        "resourceAttributes": dict(attributes),
    }
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {name: list(values) for name, values in user.extra}
    return {"apiVersion": REVIEWS.api_version, "kind": REVIEWS.kind, "spec": spec}
