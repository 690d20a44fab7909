"""The daemon's base: its private directories, the native files, the ledger."""

from __future__ import annotations

import logging
import os
import resource
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from nodeagent import native
from nodeagent.adapters.api.wire import Wire
from nodeagent.adapters.host.clock import SystemClock, boot_id
from nodeagent.adapters.host.descriptor_room import FEWEST
from nodeagent.adapters.ledger.instance_lock import InstanceLock, Taken
from nodeagent.adapters.ledger.sqlite import SqliteLedger
from nodeagent.adapters.ledger.sqlite_file import LedgerTooNew
from nodeagent.adapters.region.mounts import region_mounts
from nodeagent.adapters.region.store import RegionLibrary, TmpfsRegions
from nodeagent.native import NativeFiles
from nodeagent.paths import longest_runtime_dir, runtime_dir, state_dir
from nodeagent.settings.daemon import Settings

log = logging.getLogger(__name__)


class Unavailable(Exception):
    """The daemon cannot run here now; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Ground:
    environment: Mapping[str, str]
    runtime: Path
    state: Path
    files: NativeFiles
    wire: Wire
    boot: str
    clock: SystemClock
    ledger: SqliteLedger
    regions: TmpfsRegions
    operator_uids: frozenset[int]


def lay_ground(
    settings: Settings,
    environment: Mapping[str, str],
    make_ledger: Callable[[Path, str], SqliteLedger],
    ends: ExitStack,
) -> Ground:
    """`ends` gives everything back. Raises Unavailable, LedgerLost."""
    runtime = runtime_dir(settings.daemon.runtime_dir, environment)
    state = state_dir(settings.daemon.state_dir, environment)
    if len(os.fsencode(runtime)) > longest_runtime_dir():
        raise Unavailable(
            f"daemon.runtime_dir: {runtime} is longer than {longest_runtime_dir()} bytes, too long"
            " for the sockets in it"
        )
    files = native.locate(settings.paths.native)
    ends.callback(take("daemon.runtime_dir", runtime, 0o755).close)
    # Two daemons with one ledger would each take the other's grants for lost.
    ends.callback(take("daemon.state_dir", state, 0o700).close)
    try:
        library = RegionLibrary(files.region_library)
        wire = Wire(files.wire_descriptors)
    except (OSError, ValueError) as error:
        text = os_error_text(error) if isinstance(error, OSError) else str(error)
        raise Unavailable(f"{text}; see `sluice doctor`") from error
    raise_descriptor_limit()
    boot = boot_id()
    mounts = region_mounts(runtime)
    mount_refusal = mounts.refusal(runtime) if os.geteuid() == 0 else "not root"
    if mount_refusal:
        log.warning("no tmpfs per grant: %s; regions share %s", mount_refusal, runtime)
    try:
        ledger = make_ledger(state / "ledger.sqlite", boot)
    except LedgerTooNew as error:
        raise Unavailable(str(error)) from error
    ends.callback(ledger.close)
    if ledger.was_rebuilt:
        log.error("ledger is corrupt, moved aside; rebuilding grants from regions")
    regions = TmpfsRegions(runtime / "grants", library, boot, None if mount_refusal else mounts)
    operators = frozenset({0, os.geteuid()})
    return Ground(
        environment, runtime, state, files, wire, boot, SystemClock(), ledger, regions, operators
    )


def take(setting: str, directory: Path, mode: int) -> InstanceLock:
    """The directory is there and ours alone until the lock is closed. Raises Unavailable."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
        return InstanceLock(directory, setting)
    except Taken as error:
        raise Unavailable(str(error)) from None
    except OSError as error:
        raise Unavailable(f"{setting}: {directory}: {error.strerror}") from error


def os_error_text(error: OSError) -> str:
    """The error's text without its number."""
    text = error.strerror or str(error)
    return text if error.filename is None else f"{error.filename}: {text}"


def raise_descriptor_limit() -> None:
    """A registered process costs two descriptors, a grant five: 80 grants of 256 processes need
    41,000."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < FEWEST:
        log.warning(
            "only %d file descriptors are allowed: enough for about %d grants; raise LimitNOFILE=,"
            " or the container runtime's limit",
            hard,
            max(0, hard - 48) // 8,
        )
