"""The node's part of the Kubernetes API: its pods, their owners, its Node, and events.

Imported only on a node that has access to an API server, because it loads the HTTP client.
Everything is read by watches of this node's objects, so that no request is made when a container
starts, and the cache stays in use while the API server is down.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nodeagent.core.kubelet.pod_documents import PodFacts, read_owner, read_pod
from nodeagent.ports.kubelet import (
    ContainerRequests,
    KubeletAway,
    NoPodSource,
    Owner,
    OwnerRef,
    PodIdentity,
)
from nodeagent.ports.views import Finding
from nodeagent.units import PodUid
from sluicecommon.background import BackgroundTasks
from sluicecommon.hami.names import CORDON
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access, Credentials
from sluicecommon.kubernetes.decoding import BadAnswer, Decoder
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.following import Follower
from sluicecommon.kubernetes.reflector import Change, Changed, Reflector, Removed
from sluicecommon.kubernetes.resources import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)

log = logging.getLogger(__name__)

SYNC_S: Final = 3.0
"""Seconds that a starting container waits for a pod that the watch has not reported yet."""
DEEPEST: Final = 5
"""Maximum length of the chain of owners above a pod; Kubernetes' own controllers make two,
operators add one or two."""
OWNER_S: Final = 30.0
"""Seconds that an owner is cached; a new label on a Job takes effect after them."""
MAX_OWNERS: Final = 4096
DEADLINE_S: Final = 5.0
_KNOWN: Final = {
    (one.api_version, one.kind): one
    for one in (REPLICA_SETS, DEPLOYMENTS, STATEFUL_SETS, DAEMON_SETS, JOBS, CRON_JOBS)
}


LONGEST_CORDON: Final = 64 << 10
"""Characters of the annotation that are read."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    uid: str
    capacity: Mapping[str, str]
    counted: tuple[str, ...]
    allocatable: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Amounts that the scheduler may allocate, from the last status that was written."""
    cordoned: frozenset[str] = frozenset()
    """GPUs that get no new pods, by HAMi's annotation."""


async def uncount(
    access: Access, node: str, annotation: str
) -> tuple[dict[str, list[str]], list[str]]:
    """Remove extended resources from the Node `node`, or from all Nodes if it is empty. Returns the
    removed names by node, and the errors."""
    done: dict[str, list[str]] = {}
    client = ApiClient(Credentials(access), "sluice", deadline_s=DEADLINE_S)
    wanted = (("fieldSelector", f"metadata.name={node}"),) if node else ()
    try:
        page = Decoder(lambda document: document["metadata"]).page(
            await client.list_page(NODES, wanted)
        )
        for item in page.items:
            named = (item.value.get("annotations") or {}).get(annotation, "")
            names = [one for one in named.split(",") if one]
            if not names:
                continue
            gone = dict.fromkeys(names)
            patch: dict[str, Any] = {
                "metadata": {"annotations": {annotation: None}},
                "status": {"capacity": gone, "allocatable": gone},
            }
            await client.merge_patch(NODES, item.key, patch, subresource="status")
            done[item.key] = names
    except (ApiRefused, ApiAway, BadAnswer) as error:
        return done, [str(error)]
    finally:
        await client.close()
    return done, []


def _jitter() -> float:
    return random.uniform(0.5, 1.5)


class Cluster:
    """The node's watches of the API server. Implements Endpoint, PodSource and NodeStatus."""

    def __init__(
        self,
        access: Access,
        node: str,
        version: str,
        annotation: str,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """`annotation` of the Node has names separated by commas. Raises NoAccess."""
        self.node = node
        self.client = ApiClient(
            Credentials(access), f"sluice/{version}", connections=4, deadline_s=DEADLINE_S
        )
        self.on_gone: list[Callable[[PodUid], None]] = []
        """Called with a pod that was deleted or has finished."""
        self.on_pod: list[Callable[[PodFacts], None]] = []
        """Called with a pod that is new or has changed."""
        self.on_node: list[Callable[[], None]] = []
        """Called after the Node's facts have changed."""
        self.facts: NodeFacts | None = None
        self._annotation = annotation
        self._background = BackgroundTasks(fatal)
        self._pods: dict[str, PodFacts] = {}
        """Pods by namespace/name."""
        self._by_uid: dict[PodUid, PodFacts] = {}
        self._changed = asyncio.Event()
        self._owners: dict[tuple[str, OwnerRef], tuple[float, Owner, OwnerRef | None]] = {}
        self._plurals: dict[tuple[str, str], Resource] = {}
        self.pods = Reflector(
            Decoder(read_pod), (("fieldSelector", f"spec.nodeName={node}"),), _jitter
        )
        self.nodes = Reflector(
            Decoder(self._read_node), (("fieldSelector", f"metadata.name={node}"),), _jitter
        )
        self._logged = ""

    async def start(self) -> None:
        pods = Follower(self.client, PODS, self.pods, self._pod_changed)
        nodes = Follower(self.client, NODES, self.nodes, self._node_changed)
        self._background.spawn(pods.run(), "watch of pods")
        self._background.spawn(nodes.run(), "watch of the Node")
        self._background.spawn(self._log_problems(), "log of the watches' problems")

    async def close(self) -> None:
        await self._background.close()
        await self.client.close()

    async def _log_problems(self) -> None:
        """Log the problem of the watches, once for each change of it."""
        while True:
            await asyncio.sleep(1.0)
            trouble = self.pods.trouble or self.nodes.trouble
            if trouble and trouble != self._logged:
                log.warning("kubernetes: %s: %s", self.client.server, trouble)
            elif self._logged and not trouble:
                log.info("kubernetes: %s answers", self.client.server)
            self._logged = trouble

    def finding(self) -> Finding:
        """Finding on the watches, for `sluice doctor`."""
        where = self.client.server
        if self.pods.denied:
            return Finding(
                "pods",
                "missing",
                f"{where} forbids reading this node's pods: {self.pods.trouble}",
                "give the agent's service account get, list and watch of pods (the chart does)",
            )
        if not self.pods.synced or self.pods.trouble:
            return Finding(
                "pods",
                "warning",
                f"{where}: {self.pods.trouble or 'not listed yet'}",
                "new pods wait until the API server answers",
            )
        return Finding("pods", "ok", f"{len(self._pods)} pods of this node, from {where}")

    # --- pods ---------------------------------------------------------------------------------

    def _pod_changed(self, change: Change[PodFacts]) -> None:
        match change:
            case Changed(item):
                before = self._pods.get(item.key)
                pod = self._pods[item.key] = item.value
                if before is not None and before.uid != pod.uid:
                    self._forget(before)
                self._by_uid[pod.uid] = pod
                if pod.is_over and (before is None or not before.is_over):
                    self._report_gone(pod.uid)
                elif pod != before:
                    for call in self.on_pod:
                        call(pod)
            case Removed(key):
                self._forget(self._pods.pop(key))
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget(self, pod: PodFacts) -> None:
        if self._by_uid.get(pod.uid) is pod:
            del self._by_uid[pod.uid]
        self._report_gone(pod.uid)

    def _report_gone(self, pod: PodUid) -> None:
        for call in self.on_gone:
            call(pod)

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        facts = await self._pod(pod)
        found = facts.requests(container)
        if found is None:
            raise KubeletAway(f"{self.client.server}: {pod} has no container {container}")
        return found

    async def pod(self, pod: PodIdentity) -> ContainerRequests:
        """Labels, annotations and owner of a pod, without a container's resources. Raises
        NoPodSource, KubeletAway."""
        facts = await self._pod(pod)
        return ContainerRequests(
            pod, (), facts.labels, facts.annotations, facts.owner, facts.subdomain
        )

    async def _pod(self, pod: PodIdentity) -> PodFacts:
        """The pod's facts; waits up to SYNC_S, because the watch may lag behind the kubelet's."""
        try:
            async with asyncio.timeout(SYNC_S):
                while True:
                    if (facts := self._by_uid.get(pod.uid)) is not None:
                        return facts
                    if self.pods.denied:
                        raise NoPodSource(
                            f"{self.client.server} forbids reading pods: {self.pods.trouble}"
                        )
                    await self._changed_or(0.2)
        except TimeoutError:
            why = self.pods.trouble or f"it has no pod {pod.uid} on node {self.node} yet"
            raise KubeletAway(f"{self.client.server}: {why}") from None

    async def _changed_or(self, seconds: float) -> None:
        """Wait for a change of a pod, but not longer than `seconds`, because a watch's problem is
        not such a change."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    # --- owners -------------------------------------------------------------------------------

    async def owners(self, namespace: str, first: OwnerRef | None) -> tuple[Owner, ...]:
        found: list[Owner] = []
        ref = first
        while ref is not None and ref.kind != "Node":  # The Node owns static pods.
            if len(found) == DEEPEST:
                raise NoPodSource(f"{first} has more than {DEEPEST} owners above it")
            owner, ref = await self._owner(namespace, ref)
            found.append(owner)
        return tuple(found)

    async def _owner(self, namespace: str, ref: OwnerRef) -> tuple[Owner, OwnerRef | None]:
        now_s = time.monotonic()
        kept = self._owners.get((namespace, ref))
        if kept is not None and now_s - kept[0] < OWNER_S:
            return kept[1], kept[2]
        what = f"{ref.kind} {namespace}/{ref.name}"
        try:
            resource = await self._resource(ref)
            document = await self.client.get(resource, ref.name, namespace)
            if ref.uid and document["metadata"]["uid"] != ref.uid:
                raise KubeletAway(f"{what} was recreated (UID differs)")
            owner, above = read_owner(ref, document)
        except ApiRefused as refused:
            if refused.denied:
                raise NoPodSource(f"permission denied reading {what}: {refused.message}") from None
            raise KubeletAway(f"{what}: {refused}") from None
        except ApiAway as error:
            raise KubeletAway(f"{what}: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise KubeletAway(f"{what}: not an object: {error!r}") from None
        if len(self._owners) >= MAX_OWNERS:
            self._owners.clear()
        self._owners[namespace, ref] = (now_s, owner, above)
        return owner, above

    async def _resource(self, ref: OwnerRef) -> Resource:
        """The resource of an owner's kind. Kinds of other API groups are discovered once, because
        their plural cannot be derived."""
        key = (ref.api_version, ref.kind)
        known = _KNOWN.get(key) or self._plurals.get(key)
        if known is not None:
            return known
        group, _, version = ref.api_version.rpartition("/")
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        for one in (await self.client.get_path(path)).get("resources") or ():
            if one.get("kind") == ref.kind and "/" not in one.get("name", "/"):
                found = Resource(group, version, one["name"], ref.kind, bool(one["namespaced"]))
                self._plurals[key] = found
                return found
        raise KubeletAway(f"{ref.api_version} has no kind {ref.kind}")

    # --- the node -----------------------------------------------------------------------------

    def _read_node(self, document: Mapping[str, Any]) -> NodeFacts:
        head = document["metadata"]
        status = document.get("status") or {}
        annotations = head.get("annotations") or {}
        named = annotations.get(self._annotation, "")
        cordoned = str(annotations.get(CORDON, ""))[:LONGEST_CORDON].split(",")
        return NodeFacts(
            head["uid"],
            {str(key): str(value) for key, value in (status.get("capacity") or {}).items()},
            tuple(filter(None, named.split(","))),
            {str(key): str(value) for key, value in (status.get("allocatable") or {}).items()},
            frozenset(one.strip() for one in cordoned if one.strip()),
        )

    def _node_changed(self, change: Change[NodeFacts]) -> None:
        match change:
            case Changed(item):
                before, self.facts = self.facts, item.value
                if item.value == before:
                    return  # This is the kubelet's heartbeat.
            case Removed():
                self.facts = None
            case _:
                return
        for call in self.on_node:
            call()

    async def count(self, changes: Mapping[str, str | None], counted: str | None) -> str:
        """Write extended resources into the Node's capacity; returns the error, empty on success.
        Allocatable is written too, because the kubelet derives it only after seconds and pods would
        wait."""
        patch: dict[str, Any] = {
            "metadata": {"annotations": {self._annotation: counted}},
            "status": {"capacity": dict(changes), "allocatable": dict(changes)},
        }
        try:
            await self.client.merge_patch(NODES, self.node, patch, subresource="status")
        except (ApiRefused, ApiAway) as error:
            return str(error)
        return ""

    async def withdraw(self, resources: Collection[str]) -> str:
        """Make none of these resources allocatable; the kubelet's next status corrects it."""
        patch = {"status": {"allocatable": dict.fromkeys(resources, "0")}}
        try:
            await self.client.merge_patch(NODES, self.node, patch, subresource="status")
        except (ApiRefused, ApiAway) as error:
            return str(error)
        return ""

    def offers(self, resources: Collection[str]) -> bool:
        """Return True if any of these resources is allocatable, as last seen by the watch."""
        known = self.facts.allocatable if self.facts is not None else {}
        return any(known.get(name, "0") != "0" for name in resources)

    async def withdraw_last(self, resources: Collection[str]) -> str:
        """Withdraw the resources after the watches have ended, and close the client."""
        try:
            return await self.withdraw(resources)
        finally:
            await self.client.close()

    # --- events -------------------------------------------------------------------------------

    def pods_here(self) -> Collection[PodFacts]:
        return self._pods.values()

    async def record_pod_event(
        self, uid: PodUid, reason: str, text: str, warns: bool = True
    ) -> None:
        """Record an event on a pod. A failure is only logged."""
        pod = self._by_uid.get(uid)
        if pod is None:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.api_uid,
            },
            "type": "Warning" if warns else "Normal",
            "reason": reason,
            "message": text[:1024],
            "source": {"component": "sluice", "host": self.node},
            "reportingComponent": "sluice.dev/agent",
            "reportingInstance": self.node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self.client.create(EVENTS, event, pod.namespace)
        except (ApiRefused, ApiAway) as error:
            log.warning("kubernetes: no event for %s/%s: %s", pod.namespace, pod.name, error)
