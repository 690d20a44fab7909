"""The controller's composition root, behind `sluice-queue serve`.

Reads flags and the configuration, chooses the adapters, serves. Exit status: 0 stopped by a signal,
2 bad configuration, 69 a dependency is missing or another controller runs, 70 a defect, 75 the
database could not be written (restart), 76 another controller has taken over (do not restart).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pwd
import secrets
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from queuecontroller.scheduler.lifecycle import PodsReadySettings
from queuecontroller.scheduler.model.settings import EngineSettings, PreemptionProtection
from queuecontroller.server.api.calls import Calls
from queuecontroller.server.api.loop import GrpcLoop
from queuecontroller.server.api.nodes import NodesApi
from queuecontroller.server.api.server import GrpcServer, TlsUnusable
from queuecontroller.server.api.users import OpenPage, UsersApi, no_page
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.server.callers.authenticator import Authenticator, TokenReviewer
from queuecontroller.server.callers.fair_calls import FairCalls
from queuecontroller.server.callers.listeners import Listeners
from queuecontroller.server.collector import Collector
from queuecontroller.server.config import (
    SYSTEM_SOCKET,
    ConfigError,
    KubernetesSettings,
    Settings,
    TlsSettings,
    parse,
    split_address,
    user_socket,
)
from queuecontroller.server.log_limit import LimitedHandler
from queuecontroller.server.metrics.exposition import render
from queuecontroller.server.store.sqlite import SqliteStore, StoreUnusable
from queuecontroller.server.web.http import HttpServer
from queuecontroller.state.access import Caller, Names, RoleLists
from queuecontroller.state.access.lists import of_kernel, parse_checks
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.nodes.sessions import SECOND_NS
from queuecontroller.state.records import Store, StoreLost
from queuecontroller.state.shell import EXIT_STORE_LOST, Shell
from queuecontroller.version import version
from sluicecommon.logs import LineFormat
from sluicecommon.page.tickets import TICKET_S, Tickets
from sluicecommon.reader import ManifestError
from sluicecommon.sd_notify import SdNotify
from sluicecommon.web.page_listener import PageListener

if TYPE_CHECKING:
    from sluicecommon.web.page import Backend

log = logging.getLogger("sluice-queue")

EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69
SWITCH_S: Final = 0.0005


@dataclass(frozen=True, slots=True)
class Bound:
    """The ports in use; port 0 in the settings chooses any free one."""

    grpc_port: int
    http_port: int | None


class SystemClock:
    """Unix time that never goes backwards, since the wall clock is read only once."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()


class Uids:
    """UUIDs of version 4. Random bytes are read for many at once, since each read takes 10 us."""

    MANY: Final = 256

    def __init__(self) -> None:
        self._left = b""

    def __call__(self) -> str:
        if not self._left:
            self._left = os.urandom(16 * self.MANY)
        raw, self._left = self._left[:16].hex(), self._left[16:]
        variant = "89ab"[int(raw[16], 16) & 3]
        return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-{variant}{raw[17:20]}-{raw[20:]}"


def default_database(environment: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sluice-queue/queue.sqlite")
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/tmp')}/.local/state"
    return Path(home) / "sluice-queue" / "queue.sqlite"


def load_settings(path: Path | None, overrides: Mapping[str, Mapping[str, object]]) -> Settings:
    """The settings of the file, overridden by flags. Raises ConfigError with every mistake, each
    with its file."""
    document: dict[str, object] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError([f"{path}: {error.strerror}"]) from None
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError([f"{path}: not TOML: {error}"]) from None
        except UnicodeDecodeError as error:
            what = f"not UTF-8: {error.reason} at byte {error.start}"
            raise ConfigError([f"{path}: {what}"]) from None
    in_file = _problems(document)
    for section, values in overrides.items():
        table = document.setdefault(section, {})
        if isinstance(table, dict):
            table.update(values)
    try:
        return parse(document)
    except ConfigError as error:
        raise ConfigError(
            [f"{path}: {one}" if one in in_file else one for one in error.problems]
        ) from None


def _problems(document: dict[str, object]) -> list[str]:
    try:
        parse(document)
    except ConfigError as error:
        return error.problems
    return []


def book_settings(settings: Settings) -> BookSettings:
    engine, nodes = settings.engine, settings.nodes
    return BookSettings(
        engine=EngineSettings(
            fair_sharing=engine.fair_sharing,
            omitted_resource_is_unlimited=engine.omitted_resource_is_unlimited,
            missing_selector_admits_all=engine.missing_selector_admits_all,
            consolidation=engine.consolidation,
            requeue_delay_ns=int(engine.requeue_delay_s * SECOND_NS),
            protection=PreemptionProtection(
                reclaim_ns=int(engine.protect_from_reclaim_s * SECOND_NS),
                fair_sharing_ns=int(engine.protect_from_fair_sharing_s * SECOND_NS),
                within_queue_ns=int(engine.protect_within_queue_s * SECOND_NS),
                classes=frozenset(
                    name.strip() for name in engine.never_preempted.split(",") if name.strip()
                ),
            ),
        ),
        move_cooldown_ns=int(engine.consolidation_cooldown_s * SECOND_NS),
        preempted_rests_ns=int(engine.preempted_rests_s * SECOND_NS),
        pods_ready=PodsReadySettings(
            timeout_s=engine.pods_ready_timeout_s or None,
            backoff_limit_count=engine.pods_ready_attempts or None,
        ),
        lease_s=nodes.lease_s,
        lost_after_s=nodes.lost_after_s,
        requeue_lost=nodes.lost_policy == "requeue",
        grace_s=settings.workloads.grace_s,
        keep_finished_s=settings.workloads.keep_finished_s,
        most_per_user=settings.workloads.max_per_user,
    )


def serve(
    settings: Settings,
    environment: Mapping[str, str],
    open_store: Callable[[Path], Store] = SqliteStore,
    listening: Callable[[Bound], None] | None = None,
    restored: bool = False,
) -> int:
    """Serve until a signal; returns the exit status. Fault tests replace `open_store`; `restored`
    is True if the database was restored from a backup."""
    start_logging(settings.server.log_level)
    database = Path(settings.server.database or default_database(environment))
    try:
        wire = Wire(find_descriptors())
        store = open_store(database)
    except StoreLost as error:
        log.critical("%s", error)
        return EXIT_STORE_LOST
    except (OSError, ValueError, StoreUnusable) as error:
        log.critical("%s", error)
        return EXIT_UNAVAILABLE
    try:
        notify = SdNotify(environment.get("NOTIFY_SOCKET"))
        shell = take_over(settings, store, notify, restored)
        with asyncio.Runner(loop_factory=GrpcLoop) as runner:
            return runner.run(_serve(settings, shell, wire, listening, environment))
    except (StoreUnusable, TlsUnusable, OSError) as error:
        log.critical("%s", error)
        return EXIT_UNAVAILABLE
    except ManifestError as error:
        log.critical("the database holds an object that this version cannot read: %s", error)
        return EXIT_UNAVAILABLE
    except StoreLost as error:
        log.critical("%s", error)
        return EXIT_STORE_LOST
    finally:
        store.close()


def take_over(settings: Settings, store: Store, notify: SdNotify, restored: bool = False) -> Shell:
    """Load the queue from the database. Raises StoreUnusable, StoreLost, ManifestError."""
    places = settings.placement.mode == "nodes"
    book = Book(book_settings(settings), places, Uids())
    shell = Shell(book, store, SystemClock(), notify.send)
    gc.disable()  # Everything loaded stays alive; collections would take a third of the time.
    try:
        shell.start(restored)
    except (StoreUnusable, StoreLost, ManifestError):
        raise
    except Exception as error:
        # The rows are readable but inconsistent, after disk damage or manual editing. A restart
        # would fail the same way, so the exit status must not be that of a defect.
        log.debug("loading the database failed", exc_info=error)
        raise StoreUnusable(
            f"the database is inconsistent: {type(error).__name__}: {error}. Restore a backup, or"
            " move the file away and apply the manifests again: nodes report running work either"
            " way"
        ) from error
    finally:
        gc.enable()
    log.info("database of cluster %s, term %d", book.journal.cluster_id, book.journal.term)
    return shell


async def _serve(
    settings: Settings,
    shell: Shell,
    wire: Wire,
    listening: Callable[[Bound], None] | None,
    environment: Mapping[str, str],
) -> int:
    # The committing thread needs the GIL twice for each group and waits this long for the loop.
    sys.setswitchinterval(SWITCH_S)
    collector = Collector()
    collector.start()
    private = Path(tempfile.mkdtemp(prefix="sluice-queue-"))
    server_settings = settings.server
    listeners = Listeners(server_settings.max_connections, private, kernel_callers())
    reviewer = _open_reviewer(settings.kubernetes, environment)
    calls = Calls(
        shell,
        authenticator(settings, listeners, reviewer),
        listeners,
        FairCalls(busy=listeners.busy),
    )
    shell.connection_counts = lambda: {
        "open": len(listeners),
        "connections": listeners.refused_total,
        "calls": calls.turns.crowded_total,
    }
    nodes = NodesApi(shell, wire, calls, settings.nodes.report_s)
    tickets: Tickets[Caller] = Tickets(lambda: secrets.token_urlsafe(24))
    page = make_page_listener(settings, lambda: _page_backend(shell, tickets, settings))
    users = UsersApi(shell, wire, calls, version(), _page_opener(page, tickets))
    server = GrpcServer(settings, listeners, [nodes.handler(), users.handler(), calls.unknown()])
    web = [
        HttpServer(f"server.{name}", split_address(address), shell, metrics)
        for name, address, metrics in (
            ("metrics_listen", server_settings.metrics_listen, lambda: render(shell, version())),
            ("probes_listen", server_settings.probes_listen, None),
        )
        if address
    ]
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shell.stop)
    running = asyncio.create_task(shell.run())
    collecting = asyncio.create_task(collector.run())
    await asyncio.sleep(0)  # The first scheduling step runs before any call is accepted.
    try:
        await server.start()
        for one in web:
            await one.start()
        if page is not None:
            await page.start()
        port = await open_listeners(settings, listeners, environment)
        if listening is not None:
            listening(Bound(port, web[0].port if server_settings.metrics_listen else None))
        shell.notify("READY=1")
        return await running
    finally:
        shell.notify("STOPPING=1")
        shell.stop()
        collecting.cancel()
        collector.stop()
        running.cancel()
        await server.close()
        await listeners.close()
        for one in web:
            await one.close()
        if page is not None:
            await page.close()
        if reviewer is not None:
            await reviewer.close()
        shutil.rmtree(private, ignore_errors=True)


def make_page_listener(settings: Settings, make: Callable[[], Backend]) -> PageListener | None:
    """The page's listener; None if page.listen is empty."""
    page = settings.page
    if not page.listen:
        return None
    return PageListener(split_address(page.listen), make, page.certificate, page.key, page.url)


def _page_backend(shell: Shell, tickets: Tickets[Caller], settings: Settings) -> Backend:
    """The page's backend; its modules are imported when the page is first opened."""
    from queuecontroller.server.page.backend import QueuePage
    from queuecontroller.server.page.viewers import ByTicket

    return QueuePage(
        ByTicket(tickets),
        lambda: shell,
        lambda: page_head(settings),
        lambda: secrets.token_hex(6),
        lambda: shell.why_not_ready,
    )


def page_head(settings: Settings) -> dict[str, Any]:
    return {
        "version": version(),
        "mode": settings.kubernetes.mode,
        "places": settings.placement.mode == "nodes",
        "fairSharing": settings.engine.fair_sharing,
    }


def _page_opener(page: PageListener | None, tickets: Tickets[Caller]) -> OpenPage:
    if page is None:
        return no_page

    def opened(caller: Caller) -> tuple[str, float]:
        page.open()
        return f"{page.url}/#ticket={tickets.issue(caller, time.monotonic())}", TICKET_S

    return opened


async def open_listeners(
    settings: Settings, listeners: Listeners, environment: Mapping[str, str]
) -> int:
    """Open the Unix socket and TCP; returns the TCP port, 0 without TCP. Raises OSError."""
    server, port = settings.server, 0
    if server.socket != "none":
        path = Path(server.socket or default_socket(environment))
        try:
            await listeners.listen_unix(path)
        except OSError as error:
            if error.filename is None and error.errno is None:
                raise
            raise OSError(f"server.socket: {path}: {error.strerror}") from error
        log.info("serving on %s", path)
    if server.listen:
        host, wanted = split_address(server.listen)
        try:
            port = await listeners.listen_tcp(host, wanted)
        except OSError as error:
            raise OSError(
                f"server.listen: cannot listen on {server.listen}: {error.strerror}: is the address"
                " in use, or not an address of this machine?"
            ) from error
        log.info("serving on %s (port %d)", server.listen, port)
    listeners.start()
    return port


def default_socket(environment: Mapping[str, str]) -> Path:
    """The default of server.socket; systemd sets RUNTIME_DIRECTORY for the service."""
    given = environment.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given) / "queue.sock"
    return user_socket(environment) if os.geteuid() else SYSTEM_SOCKET


def kernel_callers() -> Callable[[int], Caller]:
    owner = os.geteuid()

    def caller(uid: int) -> Caller:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid-{uid}"
        return of_kernel(uid, name, owner)

    return caller


def _open_reviewer(tokens: KubernetesSettings, environment: Mapping[str, str]) -> Any:
    """The token reviewer; None without kubernetes.audience, so that no Kubernetes module is loaded.
    Raises OSError."""
    if not tokens.audience:
        return None
    from queuecontroller.server.callers.token_review import open_reviewer

    return open_reviewer(tokens.audience, environment, tokens.api_server)


def authenticator(
    settings: Settings, listeners: Listeners, reviewer: TokenReviewer | None
) -> Authenticator:
    certificates = role_lists(settings.tls) if settings.tls.client_ca else None
    tokens = role_lists(settings.kubernetes) if settings.kubernetes.audience else None
    for section, lists, by in (
        ("tls", certificates, "only certificates with the role's URI have this role"),
        ("kubernetes", tokens, "no token has this role"),
    ):
        for role in lists.empty() if lists is not None else ():
            log.warning("%s.%s is empty: %s", section, role, by)
    return Authenticator(listeners, certificates, tokens, reviewer)


def role_lists(lists: TlsSettings | KubernetesSettings) -> RoleLists:
    return RoleLists(
        Names.parse(lists.users),
        Names.parse(lists.nodes),
        Names.parse(lists.admins),
        parse_checks(lists.checks),
    )


def start_logging(level: str) -> None:
    handler = LimitedHandler()
    handler.setFormatter(LineFormat())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    # Callers could flood gRPC's log lines about calls; our own handlers log defects.
    logging.getLogger("grpc").setLevel(logging.CRITICAL)
