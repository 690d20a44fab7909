"""The node's side of the queue, where queue.server names a controller."""

from __future__ import annotations

import pwd
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nodeagent import native
from nodeagent.adapters.queue.client import GrpcQueueLink
from nodeagent.assembly.ground import Ground
from nodeagent.ports.views import NodeEvent
from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.shell.grants.keeper import Keeper
from nodeagent.shell.grants.spills import SpillManager
from nodeagent.shell.queue.capacity import CapacityReader
from nodeagent.shell.queue.manager import QueueManager


@dataclass(frozen=True, slots=True)
class QueueSide:
    manager: QueueManager
    capacity: CapacityReader


def make_queue(
    settings: QueueSettings,
    node: str,
    ground: Ground,
    keeper: Keeper,
    gpus: Gpus,
    events: Callable[[int], Sequence[NodeEvent]],
    spills: SpillManager,
    fatal: Callable[[BaseException], None],
) -> QueueSide:
    """`node`: its name for the controller."""
    capacity = CapacityReader(settings, node, keeper, gpus, ground.clock.monotonic_ns)
    manager = QueueManager(
        settings,
        GrpcQueueLink(settings, node, ground.boot, native.version(), ground.wire),
        ground.ledger,
        keeper,
        capacity,
        boot_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        user_name=user_name,
        events=events,
        spills=spills,
        fatal=fatal,
    )
    spills.overdue = manager.overdue
    return QueueSide(manager, capacity)


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
