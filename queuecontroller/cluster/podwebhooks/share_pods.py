"""Follows ResourceQuotas, pods, and nodes with other vendors' devices in every replica, and answers
admission requests for pods that request GPU shares."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from queuecontroller.cluster.cache.objects import version_of
from queuecontroller.cluster.podwebhooks.claim_templates import Templates
from queuecontroller.cluster.setup.registration import own_name
from queuecontroller.gpushares.admission import (
    Answer,
    PodUse,
    Question,
    Quotas,
    Rules,
    answer,
    counted,
    is_over,
    templates_of,
    use_of,
)
from queuecontroller.gpushares.admission.hami_annotations import ON_NODES
from queuecontroller.gpushares.admission.instances import profiles_in
from queuecontroller.gpushares.vendors.asks import annotations_of
from queuecontroller.gpushares.vendors.book import ForeignBook
from queuecontroller.gpushares.vendors.rules import listed
from queuecontroller.state.nodes.nodes_room import NO_CORDON, Cordon
from sluicecommon.hami.devices import LONGEST
from sluicecommon.hami.names import CORDON
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.decoding import Decoder
from sluicecommon.kubernetes.errors import ApiAway
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed
from sluicecommon.kubernetes.resources import NODES, Resource

log = logging.getLogger(__name__)
QUOTAS: Final = Resource("", "v1", "resourcequotas", "ResourceQuota")
AGAIN_S: Final = 30.0
RETURNS_S: Final = 3.0
"""Seconds that a stopped node's GPUs must be allocatable before pods are placed there again. While
an agent stops, each status of its kubelet has them again, and the agent withdraws them within a
quarter of a second; a pod that is bound meanwhile may be rejected."""
_HEAD: Final = ("name", "namespace", "uid", "annotations")
_SPEC: Final = ("nodeName",)
_CONTAINER: Final = ("name", "resources", "restartPolicy")
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SeenNode:
    foreign: Document | None
    """The node with other vendors' devices, the fields that are read; None: it has none."""
    noted: Mapping[str, str]
    """The node's annotations that NodeFacts writes."""
    cordon: Cordon = NO_CORDON
    profiles: frozenset[str] = frozenset()
    """Resource names of its MIG profiles."""
    stopped: bool = False
    """True if its kubelet has a device plugin's GPUs, and none to allocate now."""


@dataclass(frozen=True, slots=True)
class SeenPod:
    """The parts of a pod that are counted."""

    uid: str
    version: int = 0
    use: PodUse | None = None
    foreign: Document | None = None
    """The pod's fields about other vendors' devices; None: it has none."""
    templates: tuple[tuple[str, str], ...] = ()
    """Namespace and name of the templates of its claims."""


class SharePods:
    def __init__(self, rules: Rules, now_ns: Callable[[], int]) -> None:
        self.rules = rules
        self.quotas = Quotas(counted(rules.devices))
        self.foreign = ForeignBook(rules.vendors)
        self.templates = Templates()
        self._now_ns = now_ns
        self._uids: dict[str, str] = {}
        """UIDs of pods by namespace and name."""
        self._versions: dict[str, int] = {}
        """Versions of counted pods by UID: the watch and a leader's list both report them."""
        self._followers: list[Follower[Any]] = []
        self.cordons: dict[str, Cordon] = {}
        """Cordons by node."""
        self.stopped: set[str] = set()
        """Nodes whose kubelet has a device plugin's GPUs and none of them to allocate now: the
        plugin is being stopped or has not registered yet; and for RETURNS_S after that."""
        self._returning: dict[str, asyncio.TimerHandle] = {}
        """Stopped nodes whose GPUs are allocatable again."""
        self.on_cordon: Callable[[str, Cordon], None] = lambda node, cordon: None
        """Called with a node's cordon whenever the node has changed."""
        self.on_end: Callable[[str], None] = lambda uid: None
        """Called with the UID of a pod that was counted and has ended."""
        self.on_more: Callable[[str], None] = lambda what: None
        """Called with a description after a quota or other vendors' devices have changed."""
        self.displaced_total = 0
        """Pods preempted for the GPU shares of others."""
        self._profiles: dict[str, frozenset[str]] = {}
        """MIG profiles by node."""
        self._noted: dict[str, Mapping[str, str]] = {}
        """Annotations of each node, as in SeenNode."""

    @property
    def is_synced(self) -> bool:
        return all(one.reflector.synced for one in self._followers)

    def answer(self, request: Question) -> Answer:
        return answer(self.rules, self.quotas, request, self._now_ns())

    # -- changes ----------------------------------------------------------------------------------

    def follow(self, group: asyncio.TaskGroup, client: ApiClient) -> None:
        """Follow all but pods: call `pod_changed` with these, as `seen` reads them."""
        for kind, read, changed in (
            (QUOTAS, dict, self.quota_changed),
            (NODES, self.seen_node, self.node_changed),
        ):
            reflector: Reflector[Any] = Reflector(
                Decoder(read), (), jitter=lambda: random.uniform(0.5, 1.5)
            )
            follower = Follower(client, kind, reflector, changed)
            self._followers.append(follower)
            group.create_task(follower.run())
        if self.rules.claims:
            self._followers.append(self.templates.follow(group, client))
        group.create_task(self._find_own_name(client))

    async def _find_own_name(self, client: ApiClient) -> None:
        """Allow the controller's own account to write placements of pods."""
        while True:
            try:
                name = await own_name(client)
            except ApiAway as error:
                log.warning("cannot read the controller's own user name, trying again: %s", error)
                await asyncio.sleep(AGAIN_S)
                continue
            if not name:
                log.warning(
                    "the controller's own user name is unknown: placement annotations of pods are"
                    " not protected, trying again"
                )
                await asyncio.sleep(AGAIN_S)
                continue
            self.rules = replace(self.rules, writers=self.rules.writers | {name})
            return

    def quota_changed(self, change: Change[Document]) -> None:
        match change:
            case Changed(item):
                if self.quotas.quota(item.value):
                    self.on_more(f"quota {item.key}")
            case Removed(key):
                namespace, _, name = key.partition("/")
                if self.quotas.no_quota(namespace, name):
                    self.on_more(f"quota {key}")
            case _:
                pass

    def seen_node(self, document: Document) -> SeenNode:
        given = annotations_of(document)
        noted = {key: given[key] for key in ON_NODES if key in given}
        gpus = listed({CORDON: given.get(CORDON, "")[:LONGEST]}, CORDON)
        whole = (document.get("spec") or {}).get("unschedulable") is True
        amounts = (document.get("status") or {}).get("capacity") or {}
        has = profiles_in({name: amount for name, amount in amounts.items() if str(amount) != "0"})
        cordon = Cordon(whole, frozenset(gpus))
        count = self.rules.devices.nvidia.count
        given_now = (document.get("status") or {}).get("allocatable") or {}
        stopped = str(given_now.get(count)) == "0"
        return SeenNode(self.foreign.pruned_node(document), noted, cordon, has, stopped)

    def node_changed(self, change: Change[SeenNode]) -> None:
        match change:
            case Changed(item):
                self._noted[item.key] = item.value.noted
                self._cordoned(item.key, item.value.cordon)
                self._profiled(item.key, item.value.profiles)
                self._stopped(item.key, item.value.stopped)
                if self.foreign.node(item.key, item.value.foreign):
                    self.on_more(f"devices of {item.key}")
            case Removed(key):
                self._noted.pop(key, None)
                self._cordoned(key, NO_CORDON)
                self._profiled(key, frozenset())
                self._end_return(key)
                self.stopped.discard(key)
                self.foreign.node(key, None)
            case _:
                pass

    def _cordoned(self, node: str, cordon: Cordon) -> None:
        if cordon == NO_CORDON:
            self.cordons.pop(node, None)
        else:
            self.cordons[node] = cordon
        self.on_cordon(node, cordon)

    def _stopped(self, node: str, stopped: bool) -> None:
        if stopped:
            self._end_return(node)
            self.stopped.add(node)
        elif node in self.stopped and node not in self._returning:
            loop = asyncio.get_running_loop()
            self._returning[node] = loop.call_later(RETURNS_S, self._returned, node)

    def _returned(self, node: str) -> None:
        del self._returning[node]
        self.stopped.remove(node)
        self.on_more(f"GPUs of {node}")

    def _end_return(self, node: str) -> None:
        if (timer := self._returning.pop(node, None)) is not None:
            timer.cancel()

    def _profiled(self, node: str, profiles: frozenset[str]) -> None:
        if self._profiles.pop(node, frozenset()) != profiles or profiles:
            if profiles:
                self._profiles[node] = profiles
            every = frozenset().union(*self._profiles.values())
            if every != self.rules.profiles:
                self.rules = replace(self.rules, profiles=every)

    def noted(self, node: str) -> Mapping[str, str] | None:
        """Return a node's annotations that NodeFacts writes; None if there is no such node."""
        return self._noted.get(node)

    def seen(self, document: Document) -> SeenPod:
        """Read a pod. Raises KeyError, TypeError, AttributeError if malformed."""
        uid = str(document["metadata"]["uid"])
        use = None if is_over(document) else use_of(self.rules.devices, document)
        foreign = _foreign(document) if self.foreign.holds(document) else None
        version = version_of(document)
        return SeenPod(
            uid,
            version,
            use if use is not None and any(use.use.values()) else None,
            foreign,
            self._templates_of(document) if use is not None and self.rules.claims else (),
        )

    @staticmethod
    def _templates_of(document: Document) -> tuple[tuple[str, str], ...]:
        namespace = str(document["metadata"].get("namespace"))
        return tuple((namespace, name) for name in templates_of(document).values())

    def pod_changed(self, change: Change[SeenPod]) -> None:
        match change:
            case Changed(item):
                self._take(item.key, item.value)
            case Removed(key):
                uid = self._uids.pop(key, None)
                if uid is not None:
                    self._gone(uid)
            case _:
                pass

    def take(self, document: Document) -> None:
        """Take in a pod that was read without the watch."""
        head = document["metadata"]
        self._take(f"{head.get('namespace')}/{head['name']}", self.seen(document))

    def _take(self, key: str, pod: SeenPod) -> None:
        self.templates.want(pod.templates)
        if 0 < pod.version < self._versions.get(pod.uid, 0):
            return
        before = self._uids.get(key)
        if before not in (None, pod.uid):  # The pod was recreated.
            self._gone(str(before))
        if pod.use is None and pod.foreign is None:
            self._uids.pop(key, None)
            self._gone(pod.uid)
            return
        self._uids[key] = pod.uid
        self._versions[pod.uid] = pod.version
        if pod.use is None:
            self.quotas.no_pod(pod.uid)
        else:
            self.quotas.pod(pod.uid, pod.use)
        self.foreign.pod(pod.uid, pod.foreign)

    # -- scheduling -------------------------------------------------------------------------------

    def refusals(self, pod: Document, names: Iterable[str]) -> dict[str, str]:
        """Return the nodes that are not feasible for the namespace's quota or for other vendors'
        devices, each with the reason. Raises AskError."""
        use = use_of(self.rules.devices, pod)
        why = self.quotas.bind(str(pod["metadata"].get("uid")), use) if use.use else ""
        if why:
            return dict.fromkeys(names, why)
        ask = self.foreign.asks(pod)
        if not ask.asks:
            return {}
        found = {name: self.foreign.why_not(ask, name) for name in names}
        return {name: reason for name, reason in found.items() if reason}

    def reserve(
        self, pod: Document, node: str, given: Sequence[tuple[int, int]]
    ) -> dict[str, str] | str:
        """Reserve quota and other vendors' devices for a pod that is about to be bound.

        Returns the annotations to bind it with, or an error. `given`: bytes and parts per million
        of its GPU shares. Raises AskError.
        """
        uid = str(pod["metadata"]["uid"])
        use = replace(use_of(self.rules.devices, pod, given=given), bound=True)
        why = self.quotas.bind(uid, use) if use.use else ""
        if why:
            return why
        chosen: dict[str, str] | str = {}
        if self.foreign.asks(pod).asks:
            chosen = self.foreign.choose(pod, node, self._now_ns())
            if isinstance(chosen, str):
                return chosen
            self.foreign.assume(uid, node, pod, chosen)
        if use.use:
            self.quotas.pod(uid, use)
        return chosen

    def give_back(self, pod: Document) -> None:
        """Release what was reserved for a pod that was not bound."""
        uid = str(pod["metadata"]["uid"])
        self.foreign.forget(uid)
        use = use_of(self.rules.devices, pod)
        if use.use:
            self.quotas.pod(uid, replace(use, bound=False))

    def _gone(self, uid: str) -> None:
        held = self._versions.pop(uid, None) is not None
        self.quotas.no_pod(uid)
        self.foreign.pod(uid, None)
        if held:
            self.on_end(uid)


def _foreign(document: Document) -> dict[str, Any]:
    head, spec = document["metadata"], document.get("spec") or {}
    containers = {
        key: [_part(one, _CONTAINER) for one in spec.get(key) or ()]
        for key in ("initContainers", "containers")
    }
    return {
        "metadata": {**_part(head, _HEAD), "annotations": annotations_of(document)},
        "spec": {**_part(spec, _SPEC), **containers},
        "status": _part(document.get("status") or {}, ("phase",)),
    }


def _part(table: Document, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}
