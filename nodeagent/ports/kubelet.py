"""Values that the node and its kubelet exchange, and their ports.

A *slot* is one device id that the kubelet counts, `GPU-<uuid>::<n>`; its GPU is a hint. An
*allocation* is one answer to Allocate, identified by its nonce. A *grant* is made when the kubelet
starts the container, because only then the pod is known.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, NewType, Protocol

from nodeagent.ports.clients import GrantAsk
from nodeagent.ports.containers import ContainerAnswer
from nodeagent.units import GpuUuid, GrantId, PodUid

Nonce = NewType("Nonce", str)
"""32 lower-case hexadecimal digits, drawn at random for one answer to Allocate, never reused."""

NONCE: Final = re.compile(r"[0-9a-f]{32}")
POD_UID: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z._-]{0,61}[0-9A-Za-z])?")
"""A UUID for most pods, 32 hexadecimal digits for static ones; other forms are only bounded."""
SLOT_ID: Final = re.compile(
    r"((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})::(0|[1-9][0-9]{0,3})"
)
LONGEST_DEVICE_ID: Final = 63
"""The kubelet's own bound."""


FIRST_PLACE: Final = 1000
"""Slots from here on are placements of MIG instances, see core/kubelet/places.py."""


class SlotId(NamedTuple):
    gpu: GpuUuid
    slot: int

    @property
    def is_place(self) -> bool:
        return self.slot >= FIRST_PLACE

    def __str__(self) -> str:
        return f"{self.gpu}::{self.slot}"


class NotOurs(ValueError):
    """A device id that this plugin never created."""


def parse_slot(text: str) -> SlotId:
    """Raises NotOurs."""
    found = SLOT_ID.fullmatch(text)
    if found is None or len(text) > LONGEST_DEVICE_ID:
        shown = "".join(c if c.isprintable() else "?" for c in text[:LONGEST_DEVICE_ID])
        raise NotOurs(f"expected a device ID of this plugin (GPU-<uuid>::<slot>), got {shown!r}")
    return SlotId(GpuUuid(found[1]), int(found[2]))


# --- records of the kubelet --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """One device of ListAndWatch."""

    id: str
    healthy: bool
    numa_node: int | None = None


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """The kubelet's own record of one container's devices; the only one with the pod's UID that
    covers init containers."""

    pod_uid: PodUid
    container: str
    resource: str
    device_ids: frozenset[str]
    nonce: Nonce | None
    """Nonce in the answer that the kubelet stored; None: the answer was another plugin's."""
    driver: str = ""
    """Driver's generation in the same answer, see Allocation."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    entries: tuple[CheckpointEntry, ...] = ()
    registered: tuple[str, ...] = ()
    """Device ids that the kubelet last knew for our resource, whichever plugin registered them."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One container's devices in PodResources, which has neither UIDs nor plain init containers."""

    namespace: str
    pod: str
    container: str
    device_ids: frozenset[str]


@dataclass(frozen=True, slots=True)
class PodIdentity:
    uid: PodUid
    namespace: str = ""
    name: str = ""
    """Empty while only an init container runs and the kubelet has no Pods API."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.name else f"pod {self.uid}"


@dataclass(frozen=True, slots=True)
class Claim:
    """A container with our answer, from the kubelet's checkpoint."""

    nonce: Nonce
    container: str
    driver: str = ""


class OwnerRef(NamedTuple):
    """The controller of an object, as the object names it."""

    api_version: str
    kind: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """A controller above a pod, as the API server has it."""

    ref: OwnerRef
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerRequests:
    """Requests of a container by resource name; amounts as Kubernetes writes them: 8000, 8Gi,
    500m."""

    pod: PodIdentity
    resources: tuple[tuple[str, str], ...]
    labels: tuple[tuple[str, str], ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    owner: OwnerRef | None = None
    """Its controller, such as a Job or a ReplicaSet; None if it has none."""
    subdomain: str = ""
    """Headless service by which the pods of its job find each other; empty: none."""


@dataclass(frozen=True, slots=True)
class RequestsUnknown:
    """The container's requests could not be read."""

    why: str


class KubeletAway(Exception):
    """The kubelet, one of its files, or the API server cannot be read now: nothing is known, and
    nothing counts as gone."""


class NoPodSource(Exception):
    """This node has no source for its pods' requests, and waiting does not help; the text says what
    is missing."""


class RetryLater(Exception):
    """The container cannot start now; the kubelet retries, and shows the text to people."""


class PermanentError(Exception):
    """Retrying does not help; the text says what has to change."""


class KubeletRecords(Protocol):
    """Read-only."""

    def checkpoint(self) -> Checkpoint:
        """Entries of our resource. Raises KubeletAway."""

    async def listings(self) -> list[Listing]:
        """Containers that hold devices of our resource. The kubelet frees the devices of pods that
        have ended. Raises KubeletAway."""

    async def listings_of(self, namespace: str, name: str) -> list[Listing]:
        """Those of one pod. Frees nothing. Raises KubeletAway, also if this kubelet has no such
        call or no such pod."""


class PodSource(Protocol):
    """Source of a pod's requests and owners."""

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        """Raises KubeletAway or NoPodSource."""

    async def owners(self, namespace: str, first: OwnerRef | None) -> tuple[Owner, ...]:
        """Owners from the pod's own controller upwards: a Job, then its CronJob. Raises KubeletAway
        or NoPodSource."""


class Admissions(Protocol):
    """Decisions of the queue about pods, where Kueue's objects are the queue."""

    async def why_not(
        self, namespace: str, name: str, uids: Collection[str], all_known: bool
    ) -> str:
        """The reason why no Workload of a pod is admitted; empty if one is.

        `name`: the Workload that the pod names, or empty. `uids`: those of the pod and its owners;
        `all_known` is False if more owners may exist. Raises KubeletAway.
        """


class PodCgroups(Protocol):
    def pods(self) -> frozenset[PodUid] | None:
        """UIDs of pods that have a cgroup now; None: cannot be determined."""


# --- rows --------------------------------------------------------------------------------------


class AllocationState(StrEnum):
    INTENT = "intent"
    """Returned by Allocate; its pod is not known yet."""
    BOUND = "bound"
    """Bound to a container, with a grant."""
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Allocation:
    nonce: Nonce
    resource: str
    device_ids: frozenset[str]
    boot_id: str
    created_unix_s: float
    state: AllocationState = AllocationState.INTENT
    pod: PodIdentity | None = None
    container: str = ""
    grant: GrantId | None = None
    driver: str = ""
    """Driver's generation that the answer names beside the nonce; empty: none, as in answers of
    earlier releases, and the grant's own file has everything."""


class AllocationLedger(Protocol):
    """Durable when `commit` returns. Raises LedgerLost or LedgerFull."""

    def load(self) -> list[Allocation]:
        """All rows that are not released."""

    async def commit(self, rows: Sequence[Allocation]) -> None:
        """Write all rows or none."""

    def close(self) -> None: ...


# --- limits -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Limits of a container, and their source."""

    ask: GrantAsk
    source: str
    """queue, pod or defaults."""
    workload: str = ""
    """namespace/name of the queue's workload."""
    replica: str = ""
    """Replica of the workload that the queue matches to this pod."""


class LimitsSource(Protocol):
    async def limits(
        self,
        pod: PodIdentity,
        container: str,
        requests: ContainerRequests | RequestsUnknown,
        gpus: int,
    ) -> ContainerLimits | None:
        """The limits; None if this source has none, so that the next one is used. Raises
        RetryLater, PermanentError or KubeletAway."""


# --- requests of the kubelet -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreferenceAsk:
    available: tuple[str, ...]
    must_include: tuple[str, ...]
    size: int


class PluginService(Protocol):
    """Operations of the device plugin's server; the daemon's shell implements it. The text of each
    exception is shown to people, in the pod's events."""

    def devices(self) -> tuple[SlotDevice, ...]:
        """All slots, those of unhealthy GPUs included."""

    def watch(self) -> AsyncIterator[tuple[SlotDevice, ...]]:
        """The full list at once, and again after each change."""

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]: ...

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        """Durable when it returns. Raises NotOurs, PermanentError, LedgerFull, LedgerLost or
        TimeoutError."""

    async def pre_start(self, device_ids: Sequence[str]) -> None:
        """Raises NotOurs, RetryLater, PermanentError or LedgerLost."""
