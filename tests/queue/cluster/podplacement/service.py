"""The extender's desk of a leader over an API server in memory: for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from queuecontroller.cluster.cache.objects import ObjectCache as Objects
from queuecontroller.cluster.podplacement.extender_service import ExtenderService
from queuecontroller.cluster.podplacement.gpu_pods import Budgets, GpuPods
from queuecontroller.cluster.podplacement.pod_gangs import GroupSources
from queuecontroller.cluster.podwebhooks.share_pods import SharePods
from queuecontroller.cluster.session import NullStore
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.gpushares.admission import Rules
from queuecontroller.gpushares.extender.answers import Defaults
from queuecontroller.gpushares.extender.pod_groups import COSCHEDULING
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.nodes.sessions import Hello
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.decoding import Item
from sluicecommon.kubernetes.errors import ApiAway, ApiRefused
from sluicecommon.kubernetes.reflector import Changed, Removed
from sluicecommon.kubernetes.resources import Resource
from tests.queue.gpushares.extender.rooms import contradictions, dumped, node, pod

LEAVES = "1970-01-01T00:00:30Z"
"""Half a minute from what the clock here says."""


class Clock:
    def now_ns(self) -> int:
        return 1


class Api:
    """Pods as the API server keeps them; `fate` says what becomes of a binding."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.fate: Callable[[], None] = lambda: None
        self.bindings: list[Mapping[str, Any]] = []
        self.patches: list[tuple[str, str, Mapping[str, Any]]] = []
        self.guarded: set[str] = set()
        """Pods that a budget does not let go."""
        self.several: set[str] = set()
        """Pods of several budgets."""
        self.hasty = 0
        """Evictions that are refused because there are too many requests."""
        self.away = False
        self.gone: list[tuple[str, str]] = []
        """How, and which pod was displaced."""
        self.marks: list[tuple[str, str]] = []
        """Which pod got a condition, and its reason."""
        self.changed: Callable[[str], None] = lambda name: None

    def create(self, document: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        self.pods[document["metadata"]["name"]] = document
        return document

    async def list_page(
        self, resource: Resource, parameters: Any = (), namespace: str = ""
    ) -> bytes:
        return dumped({"metadata": {}, "items": list(self.pods.values())})

    async def get(self, resource: Resource, name: str, namespace: str = "") -> dict[str, Any]:
        if name not in self.pods:
            raise ApiRefused(404, "NotFound", f"no pod {name}")
        return self.pods[name]

    async def create_part(
        self,
        resource: Resource,
        name: str,
        part: str,
        document: Mapping[str, Any],
        namespace: str = "",
    ) -> dict[str, Any]:
        if part == "eviction":
            if name in self.guarded:
                text = "Cannot evict pod as it would violate the pod's disruption budget."
                raise ApiRefused(429, "TooManyRequests", text)
            if self.hasty:
                self.hasty -= 1
                raise ApiRefused(429, "TooManyRequests", "Too many requests, please try again")
            if name in self.several:
                text = "This pod has more than one PodDisruptionBudget, which is not supported"
                raise ApiRefused(500, "InternalError", text)
            self._end(name, "evicted", document["deleteOptions"]["preconditions"]["uid"])
            return {}
        self.bindings.append(document)
        await asyncio.sleep(0)
        self.fate()
        self.bind(name, document)
        return {}

    async def merge_patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        if self.away:
            raise ApiAway("nobody answers")
        if subresource == "status":
            node = patch["status"]["nominatedNodeName"]
            self.pods[name]["status"]["nominatedNodeName"] = node
            self.create(self.pods[name])
            self.changed(name)
            return {}
        self.patches.append((namespace, name, patch))
        return {}

    async def apply(
        self,
        resource: Resource,
        name: str,
        document: Mapping[str, Any],
        manager: str,
        namespace: str = "",
        subresource: str = "",
    ) -> dict[str, Any]:
        (condition,) = document["status"]["conditions"]
        assert condition["type"] == "DisruptionTarget"
        self.marks.append((name, condition["reason"]))
        return {}

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", uid: str = ""
    ) -> dict[str, Any]:
        self._end(name, "deleted", uid)
        return {}

    def _end(self, name: str, how: str, uid: str) -> None:
        if self.away:
            raise ApiAway("nobody answers")
        if name not in self.pods or self.pods[name]["metadata"]["uid"] != uid:
            raise ApiRefused(404, "NotFound", f"no pod {name}")
        self.gone.append((how, name))
        self.pods[name]["metadata"]["deletionTimestamp"] = LEAVES
        self.create(self.pods[name])
        self.changed(name)

    def bind(self, name: str, document: Mapping[str, Any]) -> None:
        there = self.pods[name]
        if there["spec"].get("nodeName"):
            raise ApiRefused(409, "Conflict", f"pod {name} is already assigned")
        there["spec"]["nodeName"] = document["target"]["name"]
        there["metadata"]["annotations"].update(document["metadata"].get("annotations") or {})
        self.create(there)


class ObjectCache:
    def __init__(
        self,
        gpus: int = 1,
        api: Api | None = None,
        sharing: bool = False,
        best_only: bool = False,
        groups: Mapping[str, int] | None = None,
        rules: Rules | None = None,
        objects: Sequence[tuple[Resource, dict[str, Any]]] = (),
    ) -> None:
        """`sharing`: quota and other vendors' devices are known, too, by `rules`; `groups`: minimums
        of PodGroups by name; `objects`: what else the leader before has known."""
        self.api = api or Api()
        self.api.changed = self.watch
        self.sharing = SharePods(rules or Rules(), lambda: 1) if sharing else None
        self.pods = GpuPods()
        self.budgets = Budgets()
        self.told: list[tuple[str, str]] = []
        """Pods, and events at them."""
        self.texts: list[str] = []
        """Messages of the events of groups and of pods left out."""
        book = Book(BookSettings(), False, lambda: "uid")
        self.shell = Shell(book, NullStore(0, "lease"), Clock())
        self.shell.start()
        for name in ("a", "b"):
            self.connect(name, node(name, gpus))
        self.may_write = True
        self.objects = Objects()
        for group, minimum in (groups or {}).items():
            self.group(group, minimum)
        for kind, document in objects:
            self.objects.take(kind, document)
        self.desk = ExtenderService(
            self.shell,
            self.api,  # type: ignore[arg-type]  # as much of a client as the desk uses
            self.pods,
            self.budgets,
            lambda: self.may_write,
            Defaults(best_only=best_only),
            self.sharing,
            self.objects,
            record=lambda document, told: self.told.append(
                (document["metadata"]["name"], told.reason)
            ),
            groups=GroupSources(
                is_followed=lambda kind: groups is not None and kind in COSCHEDULING,
                record=self._tell,
            ),
            namespace="sluice",
        )

    def _tell(self, document: Mapping[str, Any], told: KubernetesEvent) -> None:
        self.told.append((document["metadata"]["name"], told.reason))
        self.texts.append(told.message)

    def group(self, name: str, minimum: int, version: int = 1, **spec: Any) -> None:
        """A PodGroup is there, or has changed."""
        head = {"name": name, "namespace": "t", "resourceVersion": str(version), "uid": name}
        document = {"metadata": head, "spec": {"minMember": minimum, **spec}}
        self.objects.take(COSCHEDULING[0], document)

    def connect(self, name: str, capacity: NodeCapacity) -> None:
        self.shell.book.desk.connect(Hello(name, capacity=capacity), 1)

    def away(self, name: str) -> None:
        self.shell.book.nodes.nodes[name].connected = False
        self.shell.book.nodes.version += 1

    def quota(self, memory_mib: int) -> None:
        assert self.sharing is not None
        head = {"name": "q", "namespace": "t"}
        document = {"metadata": head, "spec": {"hard": {"limits.nvidia.com/gpumem": memory_mib}}}
        self.sharing.quota_changed(Changed(Item("t/q", "1", document)))

    def create(self, name: str, **asked: Any) -> dict[str, Any]:
        document = self.api.create(pod(name, **asked))
        self.watch(name)
        return document

    def watch(self, name: str) -> None:
        """The watch reports it."""
        self.desk._take(self.api.pods[name])

    async def run_pod(self, name: str, where: str, **asked: Any) -> None:
        """A pod that is bound there."""
        self.create(name, **asked)
        assert await self.bind(name, where) == ""
        self.watch(name)

    def end(self, name: str) -> None:
        """It is gone, and the watch reports it."""
        self.api.pods.pop(name)
        self.pods.changed(Removed(f"t/{name}"))

    async def filter(self, name: str, *nodes: str) -> list[str]:
        """Call the filter as kube-scheduler does for an existing pod."""
        found = await self.add("filter", Pod=self.api.pods[name], NodeNames=nodes or ("a", "b"))
        return list(found["NodeNames"])

    async def until(self, what: str, condition: Callable[[], Any]) -> None:
        for _ in range(1000):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError(f"never: {what}")

    async def add(self, verb: str, **fields: Any) -> Any:
        return json.loads(await answered(self.desk, verb, dumped(fields)))

    async def bind(self, name: str, where: str) -> str:
        fields = {"PodName": name, "PodNamespace": "t", "PodUID": f"u-{name}", "Node": where}
        return str((await self.add("bind", **fields))["Error"])


async def answered(desk: ExtenderService, verb: str, body: bytes) -> bytes:
    """Response of the extender; a request that waits for nothing is answered at once."""
    made = desk.answer(verb, body)
    return made if isinstance(made, bytes) else await made


async def settled(after_s: float = 0.0) -> None:
    """Let all work that needs no time finish; with `after_s`, also work that waits that long, by
    the loop's clock, which is put forward."""
    if after_s:
        loop = asyncio.get_running_loop()
        now_s = loop.time
        loop.time = lambda: now_s() + after_s  # type: ignore[method-assign]
    for _ in range(100):
        await asyncio.sleep(0)


def run(test: Callable[[ObjectCache], Any], whole: bool = True, **world: Any) -> None:
    """`whole`: at its end all that was given is there to be had."""

    async def main() -> None:
        made = ObjectCache(**world)
        running = asyncio.create_task(made.desk.run())
        while not made.desk._has_all_pods:
            await asyncio.sleep(0)
        await test(made)
        if whole and not made.desk.ledger.kept:
            assert contradictions(made.desk.extender.stock) == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
