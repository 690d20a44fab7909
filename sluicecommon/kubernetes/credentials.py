"""Who we are to which API server: a pod's service account, or a kubeconfig.

Tokens of service accounts live for an hour and are renewed in their file, so it is read again each
minute; the same for the CA and a client's certificate, which are taken anew when their files are.
What needs a program of somebody else's to log in (`exec`, `auth-provider`) is refused by name.
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
    """There is nothing to call an API server with; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Bytes, or the file that they are in."""

    data: bytes = b""
    path: Path | None = None

    def read(self) -> bytes:
        """Raises NoAccess."""
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
    """https://HOST:PORT, without a slash at its end."""
    ca: Secret = Secret()
    """Empty: the machine's own authorities."""
    token: Secret = Secret()
    certificate: Secret = Secret()
    key: Secret = Secret()
    server_name: str = ""
    insecure: bool = False
    """Kubeconfig's own insecure-skip-tls-verify."""
    namespace: str = ""


def in_cluster(environment: Mapping[str, str], directory: Path = SERVICE_ACCOUNT) -> Access | None:
    """None: this is no pod, or one without a service account's token."""
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
    """`load` reads YAML and raises ValueError. Raises NoAccess, with the file's name."""
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
    """Paths in it are below `directory`. Raises NoAccess, TypeError, AttributeError."""
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
                f"user {chosen['user']} logs in by {own}, which a service cannot: give it a token"
                " or a client certificate"
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
    """NAME-data holds the bytes, NAME a path."""
    if table.get(f"{key}-data"):
        try:
            return Secret(base64.b64decode(str(table[f"{key}-data"]), validate=True))
        except binascii.Error as error:
            raise NoAccess(f"{key}-data: {error}") from error
    return Secret(path=directory / str(table[key])) if table.get(key) else Secret()


@dataclass(slots=True)
class Credentials:
    """An Access as it is now."""

    access: Access
    monotonic_s: Callable[[], float] = time.monotonic
    _token: str = ""
    _context: ssl.SSLContext | None = None
    _made_of: tuple[bytes, bytes, bytes] | None = None
    _read_s: float | None = field(default=None)

    def token(self) -> str:
        """Empty: none is used. Raises NoAccess."""
        self._renew()
        return self._token

    def tls(self) -> ssl.SSLContext | None:
        """None: the server speaks plain HTTP. The same object until a file changes. Raises
        NoAccess."""
        self._renew()
        return self._context

    def forget(self) -> None:
        """They were refused: read all of it again."""
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
    """Raises NoAccess."""
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
    """OpenSSL wants a file: one in memory, so that no key comes to lie on a disk."""
    descriptor = os.memfd_create("sluice-client", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(certificate.rstrip() + b"\n" + key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
