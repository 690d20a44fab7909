"""Access to a worker by a kubeconfig: what would read files, run programs or skip the check of the
server's certificate is refused, because the kubeconfig comes from outside. No I/O but of `at_path`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from sluicecommon.kubernetes.credentials import Access, NoAccess, read_kubeconfig

LARGEST_BYTES: Final = 256 << 10
MAX_ENTRIES: Final = 100
"""Contexts, clusters and users of a kubeconfig."""
BAD: Final = "BadKubeConfig"
INSECURE: Final = "InsecureKubeConfig"
_USER: Final = {
    "tokenFile": "reads a token from a file: give the token itself",
    "client-certificate": "reads a file: give client-certificate-data",
    "client-key": "reads a file: give client-key-data",
    "username": "logs in by a password: use a token or a client certificate",
    "password": "logs in by a password: use a token or a client certificate",
    "exec": "logs in by another program: use a token or a client certificate",
    "auth-provider": "logs in by a provider: use a token or a client certificate",
    "as": "acts as another user: give that user's own credentials",
}
_CLUSTER: Final = {
    "insecure-skip-tls-verify": "does not check the server's certificate: give its CA instead",
    "certificate-authority": "reads a file: give certificate-authority-data",
    "proxy-url": "connects by a proxy, which is not supported",
}


@dataclass(frozen=True, slots=True)
class Unusable(Exception):
    """Reason and message of a kubeconfig that is not used."""

    reason: str
    text: str

    def __str__(self) -> str:
        return self.text


def read_access(data: bytes, load: Callable[[str], Any]) -> Access:
    """Read a kubeconfig; `load` parses YAML and raises ValueError. Raises Unusable."""
    if len(data) > LARGEST_BYTES:
        raise Unusable(BAD, f"the kubeconfig has more than {LARGEST_BYTES} bytes")
    try:
        document = load(data.decode("utf-8"))
    except ValueError as error:
        # The text of a parser's error may quote the file, and with it a token.
        raise Unusable(BAD, f"not a kubeconfig: {type(error).__name__}") from None
    if not isinstance(document, Mapping):
        raise Unusable(BAD, "not a kubeconfig")
    _refuse(document, "users", "user", _USER)
    _refuse(document, "clusters", "cluster", _CLUSTER)
    try:
        access = read_kubeconfig(document, Path("/nonexistent"))
    except NoAccess as error:
        raise Unusable(BAD, str(error)[:300]) from None
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise Unusable(BAD, f"not a kubeconfig: {type(error).__name__}") from None
    _check_server(access.server)
    return access


def _refuse(document: Mapping[str, Any], many: str, one: str, refused: Mapping[str, str]) -> None:
    entries = document.get(many) or ()
    if not isinstance(entries, list) or len(entries) > MAX_ENTRIES:
        raise Unusable(BAD, f"{many} is not a list of at most {MAX_ENTRIES}")
    for i, entry in enumerate(entries):
        found = entry.get(one) if isinstance(entry, Mapping) else None
        if found is not None and not isinstance(found, Mapping):
            raise Unusable(BAD, f"{many}[{i}].{one} is not an object")
        for name, why in refused.items():
            if found is not None and found.get(name):
                raise Unusable(INSECURE, f"{many}[{i}].{one}.{name} {why}")


def _check_server(server: str) -> None:
    try:
        parts = urlsplit(server)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.username is not None or parts.query or parts.fragment:
        raise Unusable(INSECURE, "the server's address is not https://HOST:PORT")
    if parts.scheme != "https":
        raise Unusable(INSECURE, "the server's address is not https: its token would be readable")


def at_path(path: str, below: Path) -> bytes:
    """Read a kubeconfig file, if it is in the directory `below`, symbolic links followed. Raises
    Unusable."""
    try:
        home, found = below.resolve(strict=True), Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise Unusable(BAD, f"there is no such file in {below}") from None
    if not Path(path).is_absolute() or home not in found.parents:
        raise Unusable(BAD, f"the path is not in {below}")
    try:
        # Without O_NONBLOCK opening a FIFO would wait for its writer.
        with open(os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unusable(BAD, "the path is not a file")
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise Unusable(BAD, f"the file cannot be read: {error.strerror}") from None
