"""The section [page] of both services' settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address

from sluicecommon.settings import absolute_path as _path


@dataclass(frozen=True, slots=True)
class PageSettings:
    """[page]: the web page."""

    listen: str = "127.0.0.1:0"
    """ADDRESS:PORT over HTTP. Port 0: any free port, which `web` prints. An address other than the
    loopback requires a certificate. Empty: no page."""
    certificate: str = _path()
    """PEM certificate for HTTPS, with its chain; reloaded when it changes."""
    key: str = _path()
    """PEM key of the certificate."""
    url: str = ""
    """Public URL, if it differs from the address, as behind a proxy. Empty: the address listened
    on."""


def check_page(page: PageSettings, split: Callable[[str], tuple[str, int]]) -> list[str]:
    """Problems of the section; `split` parses ADDRESS:PORT and raises ValueError."""
    problems = []
    if bool(page.certificate) != bool(page.key):
        lacking = "key" if page.certificate else "certificate"
        problems.append(f"page.{lacking}: is missing; certificate and key must be set together")
    if page.url and not page.url.startswith(("https://", "http://")):
        problems.append(f"page.url: {page.url!r} is not https://HOST[:PORT][/PATH]")
    if not page.listen:
        return problems
    try:
        host, _ = split(page.listen)
    except ValueError as error:
        return [*problems, f"page.listen: {error}"]
    if not page.certificate and not _is_loopback(host):
        problems.append(
            f"page.listen: {page.listen} would be HTTP without TLS, where sessions can be"
            " overheard: set page.certificate and page.key, or listen on 127.0.0.1 and put a proxy"
            " in front of it"
        )
    return problems


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
