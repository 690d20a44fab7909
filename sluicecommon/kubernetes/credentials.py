"""Address and credentials of an API server, from a pod's service account or a kubeconfig.

Tokens of service accounts expire after an hour and are rotated in their file, so it is read again
each minute, and so are the CA and the client certificate. Logins by another program (`exec`,
`auth-provider`) are refused.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
AGAIN_S: Final = 60.0
_OWN_LOGIN: Final = ("exec", "auth-provider")


class NoAccess(Exception):
    """No usable address or credentials of an API server; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Secret bytes, or the file that contains them."""

    data: bytes = b""
    path: Path | None = None

    def read(self) -> bytes:
        """The bytes. Raises NoAccess."""
        if self.path is None:
            return self.data
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise NoAccess(f"{self.path}: {error.strerror}") from error

    def __bool__(self) -> bool:
        return bool(self.data) or self.path is not None


@dataclass(frozen=True, slots=True)
class Access:
    server: str
    """https://HOST:PORT, without a trailing slash."""
    ca: Secret = Secret()
    """CA of the server; empty: the machine's CAs."""
    token: Secret = Secret()
    certificate: Secret = Secret()
    key: Secret = Secret()
    server_name: str = ""
    insecure: bool = False
    """Kubeconfig's insecure-skip-tls-verify."""
    namespace: str = ""


def in_cluster(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> Access | None:
    """Access of a pod; None outside a pod or without a service account's token."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (directory / "token").exists():
        return None
    try:
        namespace = (directory / "namespace").read_text(encoding="utf-8").strip()
    except OSError:
        namespace = ""
    host = f"[{host}]" if ":" in host else host
    return Access(
        f"https://{host}:{port}",
        ca=Secret(path=directory / "ca.crt"),
        token=Secret(path=directory / "token"),
        namespace=namespace,
    )


def from_kubeconfig(path: Path, load: Callable[[str], Any], context: str = "") -> Access:
    """Access by a kubeconfig; `load` parses YAML and raises ValueError. Raises NoAccess, with the
    file's name."""
    try:
        document = load(path.read_text(encoding="utf-8"))
        return read_kubeconfig(document, path.parent, context)
    except OSError as error:
        raise NoAccess(f"{path}: {error.strerror}") from error
    except NoAccess as error:
        raise NoAccess(f"{path}: {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise NoAccess(f"{path}: not a kubeconfig: {error}") from error


def read_kubeconfig(document: Any, directory: Path, context: str = "") -> Access:
    """Access by a parsed kubeconfig; its relative paths are below `directory`. Raises NoAccess,
    TypeError, AttributeError."""
    if not isinstance(document, Mapping):
        raise NoAccess("not a kubeconfig")
    wanted = context or document.get("current-context") or ""
    if not wanted:
        raise NoAccess("no current-context")
    chosen = _named(document, "contexts", "context", wanted)
    cluster = _named(document, "clusters", "cluster", chosen.get("cluster") or "")
    user = _named(document, "users", "user", chosen["user"]) if chosen.get("user") else {}
    for own in _OWN_LOGIN:
        if own in user:
            raise NoAccess(
                f"user {chosen['user']} logs in by {own}, which is not supported for a service:"
                " use a token or a client certificate"
            )
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise NoAccess(f"cluster {chosen.get('cluster')}: no server")
    token = Secret(str(user["token"]).encode()) if user.get("token") else Secret()
    if not token and user.get("tokenFile"):
        token = Secret(path=directory / str(user["tokenFile"]))
    return Access(
        server.rstrip("/"),
        _secret(cluster, "certificate-authority", directory),
        token,
        _secret(user, "client-certificate", directory),
        _secret(user, "client-key", directory),
        str(cluster.get("tls-server-name") or ""),
        bool(cluster.get("insecure-skip-tls-verify", False)),
        str(chosen.get("namespace") or ""),
    )


def _named(document: Mapping[str, Any], many: str, one: str, name: str) -> Mapping[str, Any]:
    for entry in document.get(many) or ():
        if entry.get("name") == name:
            found = entry.get(one) or {}
            if not isinstance(found, Mapping):
                break
            return found
    raise NoAccess(f"no {one} named {name!r}")


def _secret(table: Mapping[str, Any], key: str, directory: Path) -> Secret:
    """The secret of a key: NAME-data contains base64, NAME a path."""
    if table.get(f"{key}-data"):
        try:
            return Secret(base64.b64decode(str(table[f"{key}-data"]), validate=True))
        except binascii.Error as error:
            raise NoAccess(f"{key}-data: {error}") from error
    return Secret(path=directory / str(table[key])) if table.get(key) else Secret()


@dataclass(slots=True)
class Credentials:
    """The current credentials of an Access."""

    access: Access
    monotonic_s: Callable[[], float] = time.monotonic
    _token: str = ""
    _context: ssl.SSLContext | None = None
    _made_of: tuple[bytes, bytes, bytes] | None = None
    _read_s: float | None = field(default=None)

    def token(self) -> str:
        """The current token; empty if none is used. Raises NoAccess."""
        self._renew()
        return self._token

    def tls(self) -> ssl.SSLContext | None:
        """The TLS context, the same object until a file changes; None for plain HTTP. Raises
        NoAccess."""
        self._renew()
        return self._context

    def forget(self) -> None:
        """Read all files again at the next use, after the server refused the credentials."""
        self._read_s = None

    def _renew(self) -> None:
        now_s = self.monotonic_s()
        if self._read_s is not None and now_s - self._read_s < AGAIN_S:
            return
        access = self.access
        token = access.token.read().decode("utf-8", "replace").strip()
        parts = (access.ca.read(), access.certificate.read(), access.key.read())
        if access.server.startswith("https://") and parts != self._made_of:
            self._context = tls_context(*parts, insecure=access.insecure)
            self._made_of = parts
        self._token, self._read_s = token, now_s


def tls_context(ca: bytes, certificate: bytes, key: bytes, insecure: bool) -> ssl.SSLContext:
    """A client's TLS context. Raises NoAccess."""
    try:
        context = ssl.create_default_context(cadata=ca.decode("ascii") if ca else None)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            _load_pair(context, certificate, key)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise NoAccess(f"certificates: {error}") from error
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a certificate through a file in memory: OpenSSL requires a file, and the key must not be
    written to disk."""
    descriptor = os.memfd_create("sluice-client", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
