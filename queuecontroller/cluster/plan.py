"""The plan of a controller, as its process was configured, and what a session gets besides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from queuecontroller.cluster.autoscaling.node_requests import Autoscaling
from queuecontroller.cluster.cache.multikueue import MultiKueueSettings
from queuecontroller.cluster.cache.node_context import NodeContext
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.cache.pod_scheduling import PodScheduling
from queuecontroller.cluster.cache.policy import Policy
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.gpushares.claims.room import AllocatedClaims
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.state.book import BookSettings
from queuecontroller.state.shell import Clock
from sluicecommon.kubernetes.resources import Resource


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of a controller. Features that are off are fields of it, too."""

    book: BookSettings
    identity: str
    """Identity of this process in the Lease."""
    namespace: str
    """Namespace of the Lease."""
    lease_s: float
    new_uid: Callable[[], str]
    clock: Clock
    policy: Policy = field(default_factory=Policy)
    document: Document | None = None
    """Kueue's Configuration, the part that the book reads; None: it has none."""
    counts_claims: bool = False
    """True if the Configuration maps DeviceClasses to quotas."""
    checks_devices: bool = False
    """True if Workloads with claims need free devices to be admitted."""
    sharing: SharePods | None = None
    """Admission of pods that request GPU shares; None: there is no webhook for pods."""
    extender: Defaults | None = None
    """Defaults of the scheduler extender; None: it is off, and only queued pods are followed."""
    displaces: bool = True
    """True if pods that lack only GPU shares may preempt others, with the extender."""
    register_nodes: bool = True
    """True if HAMi's register of GPUs is written on nodes, for other tools."""
    own_url: str = ""
    """URL at which other replicas reach this one."""
    beside: bool = False
    """True beside Kueue, which assigns quota: only the placement check is answered."""
    records_all_events: bool = False
    """True if all of Kueue's events are recorded, even if conditions say the same."""
    multikueue: MultiKueueSettings = field(default_factory=MultiKueueSettings)
    report_s: float = 5.0
    """Seconds between two reports of a node."""
    autoscaling: Autoscaling | None = None
    """Requests for new nodes; None: none are made. They need the extender."""


@dataclass(frozen=True, slots=True)
class Followed:
    """Caches that each replica follows, leader or not; a session reads them."""

    cache: ObjectCache
    nodes: NodeContext
    gpu_pods: GpuPods
    budgets: Budgets
    scheduling: PodScheduling
    claims: AllocatedClaims
    is_followed: Callable[[Resource], bool]
    """True if all objects of a kind that is not served everywhere are in the cache."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """One uninterrupted time as leader."""

    term: int
    """Number of transitions of the lease."""
    cluster_id: str
    """UID of the lease."""
    may_write: Callable[[], bool]
    """Returns False for ever once the lease is lost."""
