"""Lists and releases what a dead daemon held: a second, small composition over the same parts,
which holds the daemon's lock meanwhile. Each act is undone as the daemon would undo it: with an
audit row first, and for that very cgroup, process and grant alone.

Each act is taken back as the daemon would have done it: with an audit row before it, and from that
very cgroup, process and grant alone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeagent import native
from nodeagent.adapters.ebpf import pins as ebpf_pins
from nodeagent.adapters.ebpf.watch import NoKernelWatch
from nodeagent.adapters.host.clock import SystemClock, boot_id
from nodeagent.adapters.host.config_files import DEFAULT_CONFIG, load_settings
from nodeagent.adapters.ledger.instance_lock import InstanceLock, Taken
from nodeagent.adapters.ledger.sqlite import SqliteLedger, read_holds
from nodeagent.adapters.ledger.sqlite_file import LedgerTooNew
from nodeagent.adapters.processes.cgroup_hold import CgroupRestrainer
from nodeagent.adapters.processes.hold_targets import SystemTargets
from nodeagent.adapters.processes.pidfd import SystemProcesses
from nodeagent.adapters.region.mounts import region_mounts
from nodeagent.adapters.region.store import RegionLibrary, TmpfsRegions
from nodeagent.core.watch.holds import view_of
from nodeagent.paths import runtime_dir, state_dir
from nodeagent.ports.ledger import LedgerFull, LedgerLost
from nodeagent.ports.views import ContainedView
from nodeagent.settings.daemon import ConfigError, Settings
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.journal import Journal
from nodeagent.shell.node import rules_of
from nodeagent.shell.watch.containment import Containment
from nodeagent.units import GrantId


class NotDone(Exception):
    """The text says why."""


class _Nobody:
    """A registration listener that opens nothing: processes register once the daemon runs again."""

    def open(self, grant: GrantId, directory: str, uid: int, pod_uid: str = "") -> None:
        return None

    def shut(self, grant: GrantId) -> None:
        return None


def contained(config: Path | None, environment: Mapping[str, str]) -> list[ContainedView]:
    """Raises NotDone."""
    ledger = _ledger(_settings(config), environment)
    if not _is_file(ledger):
        return []
    try:
        return [view_of(hold) for hold in read_holds(ledger, boot_id())]
    except LedgerLost as error:
        raise NotDone(str(error)) from error


def let_go(
    config: Path | None, environment: Mapping[str, str], numbers: Sequence[int], everything: bool
) -> list[ContainedView]:
    """Returns what was released. Raises NotDone when one of them is not held, or cannot be
    released."""
    settings = _settings(config)
    runtime = runtime_dir(settings.daemon.runtime_dir, environment)
    ledger = _ledger(settings, environment)
    pins = ebpf_pins.BPFFS / ebpf_pins.pins_of(runtime)
    if not _is_file(ledger) and not ebpf_pins.pinned(pins):
        if numbers:
            raise NotDone(f"there is no ledger at {ledger}")
        return []
    if os.geteuid() != 0:
        raise NotDone("only root may release what a detection holds")
    try:
        runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = InstanceLock(runtime)
    except (Taken, OSError) as error:
        raise NotDone(str(error)) from error
    try:
        return asyncio.run(_let_go(settings, runtime, ledger, pins, numbers, everything))
    except (LedgerLost, LedgerFull, LedgerTooNew, OSError, ValueError) as error:
        raise NotDone(str(error)) from error
    finally:
        lock.close()


async def _let_go(
    settings: Settings,
    runtime: Path,
    path: Path,
    pins: Path,
    numbers: Sequence[int],
    everything: bool,
) -> list[ContainedView]:
    boot, clock = boot_id(), SystemClock()
    ledger = SqliteLedger(path, boot)
    mounts = region_mounts(runtime)
    regions = TmpfsRegions(
        runtime / "grants",
        RegionLibrary(native.locate(settings.paths.native).region_library),
        boot,
        None if mounts.refusal(runtime) else mounts,
    )

    def fatal(error: BaseException) -> None:
        raise error

    processes = SystemProcesses()
    keeper = Keeper(
        rules_of(settings, boot),
        clock,
        ledger,
        regions,
        processes,
        lambda registrar: _Nobody(),
        fatal,
    )
    containment = Containment(
        keeper,
        processes,
        CgroupRestrainer(),
        ledger,
        SystemTargets(ebpf_pins.DenyPins(pins)),
        Journal(clock, 0.0),
        clock,
        NoKernelWatch(),
        denies=False,
    )
    try:
        keeper.restore()
        held = {hold.number: hold for hold in containment.holds.load()}
        unknown = [number for number in numbers if number not in held]
        if unknown:
            raise NotDone(f"nothing is held under number {unknown[0]}: see `sluice contained`")
        wanted = list(held.values()) if everything else [held[number] for number in numbers]
        because = f"by hand, uid {os.getuid()}, while no daemon ran"
        done = [hold for hold in wanted if containment.let_go(hold, because)]
        containment.sweep()  # what is gone needs no letting go
        left = {hold.number for hold in containment.holds.all()}
        failed = [hold for hold in wanted if hold.number in left]
        if everything:
            containment.allow_strangers()
            ebpf_pins.leave(pins)
        if failed:
            named = "; ".join(f"{hold.step} of {hold.holder}" for hold in failed)
            raise NotDone(f"could not be released: {named}")
        return [view_of(hold) for hold in done]
    finally:
        keeper.close()
        ledger.close()


def _settings(config: Path | None) -> Settings:
    try:
        return load_settings(config or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None))
    except ConfigError as error:
        raise NotDone("; ".join(error.problems)) from error


def _ledger(settings: Settings, environment: Mapping[str, str]) -> Path:
    return state_dir(settings.daemon.state_dir, environment) / "ledger.sqlite"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise NotDone(f"{path}: {error.strerror}; only root may read it") from error
