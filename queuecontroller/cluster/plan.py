"""What a controller is to do, as its process was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from queuecontroller.cluster.cache.node_context import NodeContext
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.state.book import BookSettings
from queuecontroller.state.shell import Clock
from sluicecommon.kubernetes.resources import Resource


@dataclass(frozen=True, slots=True)
class Plan:
    book: BookSettings
    identity: str
    """Of this process alone."""
    namespace: str
    """Where the Lease is."""
    lease_s: float
    new_uid: Callable[[], str]
    clock: Clock
    policy: Policy = field(default_factory=Policy)
    document: Document | None = None
    """Kueue's Configuration, as far as the book reads it."""
    counts_claims: bool = False
    """It maps classes of devices to quotas."""
    sharing: SharePods | None = None
    """None: nobody asks about pods as they are made."""
    extender: Defaults | None = None
    """None: no scheduler asks, and pods that are not the queue's are not followed."""
    displaces: bool = True
    """Pods that lack nothing but shares displace others, where a scheduler asks."""
    register_nodes: bool = True
    """Nodes carry HAMi's register of what they have, for other tools."""
    own_url: str = ""
    """Where other replicas find this one."""
    beside: bool = False
    """Kueue itself runs in the cluster: Workloads are only told whether there is room for them."""
    records_all_events: bool = False
    """All of Kueue's, also those that say what conditions say anyway."""
    report_s: float = 5.0
    """How often nodes report."""


@dataclass(frozen=True, slots=True)
class Followed:
    """What a replica follows whether it leads or not; a session reads it."""

    cache: ObjectCache
    nodes: NodeContext
    gpu_pods: GpuPods
    budgets: Budgets
    is_followed: Callable[[Resource], bool]
    """True if all objects of a kind that is not served everywhere are in the cache."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One uninterrupted time as leader."""

    term: int
    """How often the lease had changed hands."""
    cluster_id: str
    """UID of the lease."""
    may_write: Callable[[], bool]
    """False for ever once the lease is lost."""
