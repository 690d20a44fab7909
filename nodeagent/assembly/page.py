"""Builds the page as configured: its address is bound at once, the rest loads at the first
request."""

from __future__ import annotations

import secrets
import socket
import time
from typing import TYPE_CHECKING

from nodeagent.adapters.api.server import OpenPage, no_page
from nodeagent.assembly.ground import Ground
from nodeagent.ports.clients import NodeService
from nodeagent.ports.views import EventKind
from nodeagent.settings.daemon import split_address
from nodeagent.shell.journal import Journal
from sluicecommon.page.settings import PageSettings
from sluicecommon.page.tickets import TICKET_S, Tickets
from sluicecommon.web.page_listener import PageListener

if TYPE_CHECKING:
    from sluicecommon.web.page import Backend


def make_page(
    settings: PageSettings, node: str, ground: Ground, service: NodeService, journal: Journal
) -> tuple[OpenPage, PageListener | None]:
    """Returns the handler of `sluice web`, and the page's listener if there is a page."""
    if not settings.listen:
        return no_page, None
    tickets: Tickets[int] = Tickets(lambda: secrets.token_urlsafe(24))

    def make() -> Backend:
        from nodeagent.adapters.web.page import NodePage

        return NodePage(
            node or socket.gethostname(),
            tickets,
            service,
            journal.after,
            ground.operator_uids,
            lambda text, uid: journal.record(EventKind.ACT, "info", text, uid=uid),
            secrets.token_hex(6),
        )

    address = split_address(settings.listen)
    listener = PageListener(address, make, settings.certificate, settings.key, settings.url)

    def opened(uid: int) -> tuple[str, float]:
        listener.open()
        return f"{listener.url}/#ticket={tickets.issue(uid, time.monotonic())}", TICKET_S

    return opened, listener
