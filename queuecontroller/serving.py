"""The controller's composition root, behind `sluice-queue serve`.

Reads flags and the configuration, chooses the adapters, serves. Exit status: 0 stopped by a signal,
2 bad configuration, 69 something needed is missing or another controller runs, 70 a defect, 75 the
database could not be written (start again), 76 another controller has taken over (do not).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
import tomllib
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from queuecontroller.adapters.callers import Permissions
from queuecontroller.adapters.grpc_server import GrpcServer, TlsUnusable
from queuecontroller.adapters.http import HttpServer
from queuecontroller.adapters.metrics import render
from queuecontroller.adapters.nodes_api import NodesApi
from queuecontroller.adapters.sd_notify import SdNotify
from queuecontroller.adapters.store_sqlite import SqliteStore, StoreUnusable
from queuecontroller.adapters.users_api import UsersApi
from queuecontroller.adapters.wire import Wire, find_descriptors
from queuecontroller.collector import Collector
from queuecontroller.config import ConfigError, Settings, parse, split_address
from queuecontroller.engine.lifecycle import PodsReadySettings
from queuecontroller.engine.settings import EngineSettings
from queuecontroller.manifests.reader import ManifestError
from queuecontroller.records import Store, StoreLost
from queuecontroller.service.book import Book, BookSettings
from queuecontroller.service.nodes import SECOND_NS
from queuecontroller.service.shell import EXIT_STORE_LOST, Shell
from queuecontroller.version import version

log = logging.getLogger("sluice-queue")

EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69


@dataclass(frozen=True, slots=True)
class Bound:
    """Where it really listens: port 0 in the settings takes any that is free."""

    grpc_port: int
    http_port: int | None


class SystemClock:
    """Unix time that never runs backwards: the wall clock is read once."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()


def default_database(environment: Mapping[str, str]) -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sluice-queue/queue.sqlite")
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/tmp')}/.local/state"
    return Path(home) / "sluice-queue" / "queue.sqlite"


def load_settings(path: Path | None, overrides: Mapping[str, Mapping[str, object]]) -> Settings:
    """The file with the flags on top. Raises ConfigError with every mistake, each with its
    file."""
    document: dict[str, object] = {}
    if path is not None:
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError([f"{path}: {error.strerror}"]) from None
        except tomllib.TOMLDecodeError as error:
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
            requeue_delay_ns=int(engine.requeue_delay_s * SECOND_NS),
        ),
        pods_ready=PodsReadySettings(
            timeout_s=engine.pods_ready_timeout_s or None,
            backoff_limit_count=engine.pods_ready_attempts or None,
        ),
        lease_s=nodes.lease_s,
        lost_after_s=nodes.lost_after_s,
        requeue_lost=nodes.lost_policy == "requeue",
        grace_s=settings.workloads.grace_s,
        keep_finished_s=settings.workloads.keep_finished_s,
    )


def serve(
    settings: Settings,
    environment: Mapping[str, str],
    open_store: Callable[[Path], Store] = SqliteStore,
    listening: Callable[[Bound], None] | None = None,
) -> int:
    """Serves until a signal; the exit status. `open_store` is replaced by fault tests."""
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
        return asyncio.run(_serve(settings, store, wire, listening, notify))
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


async def _serve(
    settings: Settings,
    store: Store,
    wire: Wire,
    listening: Callable[[Bound], None] | None,
    notify: SdNotify,
) -> int:
    places = settings.placement.mode == "nodes"
    book = Book(book_settings(settings), places, lambda: str(uuid.uuid4()))
    shell = Shell(book, store, SystemClock(), notify.send)
    shell.start()
    journal = book.journal
    log.info("database of cluster %s, term %d", journal.cluster_id, journal.term)
    collector = Collector()
    collector.start()

    tls = settings.tls
    names = frozenset(name.strip() for name in tls.admins.split(",") if name.strip())
    permissions = Permissions(bool(tls.client_ca), names)
    nodes = NodesApi(shell, wire, permissions, settings.nodes.report_s)
    users = UsersApi(shell, wire, permissions, version())
    server = GrpcServer(settings, [nodes.handler(), users.handler()])
    http: HttpServer | None = None
    if settings.server.metrics_listen:
        host, port = split_address(settings.server.metrics_listen)
        http = HttpServer(host, port, shell, lambda: render(shell, version()))

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, shell.stop)
    running = asyncio.create_task(shell.run())
    collecting = asyncio.create_task(collector.run())
    await asyncio.sleep(0)  # it decides before anybody can ask
    try:
        await server.start()
        if http is not None:
            await http.start()
        bound = Bound(server.port, http.port if http is not None else None)
        log.info("serving on %s (port %d)", settings.server.listen, bound.grpc_port)
        if listening is not None:
            listening(bound)
        notify.send("READY=1")
        return await running
    finally:
        notify.send("STOPPING=1")
        shell.stop()
        collecting.cancel()
        collector.stop()
        running.cancel()
        await server.close()
        if http is not None:
            await http.close()


class _Format(logging.Formatter):
    """One line per record, control characters escaped: names in it come from users."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
        text = record.getMessage()
        safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
        line = f"{moment} {record.levelname.lower()} {safe}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def start_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Format())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
