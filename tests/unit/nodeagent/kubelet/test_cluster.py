"""The node's part of Kubernetes' API, against an API server that behaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.adapters.kubelet import cluster as module
from nodeagent.adapters.kubelet.cluster import Cluster
from nodeagent.core.grants.placement import GpuCapacity
from nodeagent.core.kubelet.offers import Offer
from nodeagent.core.kubelet.pod_documents import MIRRORED, read_pod
from nodeagent.core.kubelet.sums import ANNOTATION, patch, sums
from nodeagent.ports.kubelet import KubeletAway, NoPodSource, OwnerRef, PodIdentity, PodSource
from nodeagent.shell.pods import decommission
from nodeagent.shell.pods.decommission import NodeDecommission
from nodeagent.shell.pods.node_sums import NodeSums
from nodeagent.shell.pods.pod_sources import PodSources
from nodeagent.units import Bytes, GpuUuid, PodUid
from sluicecommon.hami.names import ResourceNames
from sluicecommon.kubernetes.credentials import Access
from tests.kit.apiserver import ApiServer

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
TOLD = SimpleNamespace(stop_announced=True)


def gpus() -> list[str]:
    return ["nvidia.com/gpu"]


def pod(name: str, uid: str, node: str = "n1", **more: Any) -> dict[str, Any]:
    owner = more.pop("owner", None)
    head: dict[str, Any] = {"name": name, "namespace": "default", "uid": uid, **more}
    if owner is not None:
        head["ownerReferences"] = [owner]
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8k"}
    return {
        "metadata": head,
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": "init", "resources": {"requests": {"a/b": 1}}}],
            "containers": [{"name": "main", "resources": {"limits": limits}}],
        },
        "status": {"phase": "Running"},
    }


def controller(kind: str, name: str, version: str = "batch/v1") -> dict[str, Any]:
    return {
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }


def owned(name: str, labels: Mapping[str, str], *above: dict[str, Any]) -> dict[str, Any]:
    head = {"name": name, "namespace": "default", "uid": f"uid-{name}", "labels": dict(labels)}
    return {"metadata": {**head, "ownerReferences": list(above)}}


def scene(play: Callable[[ApiServer, Cluster], Awaitable[None]], start: bool = True) -> None:
    async def run() -> None:
        api = ApiServer()
        await api.start()
        defects: list[BaseException] = []
        it = Cluster(Access(api.url), "n1", "0", ANNOTATION, defects.append)
        it.pods._jitter = it.nodes._jitter = lambda: 0.02  # pauses of 10 ms
        if start:
            await it.start()
        try:
            async with asyncio.timeout(30):
                await play(api, it)
        finally:
            await it.close()
            await api.close()
        assert defects == []

    asyncio.run(run())


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_a_pods_requests_and_owner_are_known_from_the_watch() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        api.put(PODS, pod("a", "u-a", owner=controller("Job", "j")))
        found = await it.requests(PodIdentity(PodUid("u-a")), "main")
        assert str(found.pod) == "default/a"
        assert dict(found.resources)["nvidia.com/gpumem"] == "8k"
        assert found.owner == OwnerRef("batch/v1", "Job", "j", "uid-j")
        assert dict((await it.requests(PodIdentity(PodUid("u-a")), "init")).resources) == {
            "a/b": "1"
        }
        with pytest.raises(KubeletAway, match="no container"):
            await it.requests(PodIdentity(PodUid("u-a")), "other")
        assert it.finding().level == "ok"
        assert ("GET", f"{PODS}/a") not in api.requests, "nothing is asked when a container starts"

    scene(play)


def test_a_pod_that_the_watch_does_not_have_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        await until(lambda: it.pods.synced)
        asked = asyncio.create_task(it.requests(PodIdentity(PodUid("late")), "main"))
        await asyncio.sleep(0.05)
        api.put(PODS, pod("late", "late"))
        assert (await asked).pod.name == "late"
        monkeypatch.setattr(module, "SYNC_S", 0.05)
        api.put(PODS, pod("elsewhere", "elsewhere", "n2"))
        with pytest.raises(KubeletAway, match="no pod elsewhere"):
            await it.requests(PodIdentity(PodUid("elsewhere")), "main")

    scene(play)


def test_not_to_be_allowed_is_no_trouble_that_passes() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        api.refuse = lambda method, path: (403, "Forbidden") if path == PODS else None
        await it.start()
        with pytest.raises(NoPodSource, match="forbids reading pods"):
            await it.requests(PodIdentity(PodUid("a")), "main")
        assert it.finding().level == "missing"

    scene(play, start=False)


def test_while_the_api_server_is_away_what_is_known_stands_and_new_pods_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        api.put(PODS, pod("a", "u-a"))
        await until(lambda: it.pods.synced and len(it.pods) == 1)
        monkeypatch.setattr(module, "SYNC_S", 0.2)
        await api.close()
        await until(lambda: it.pods.trouble)
        assert (await it.requests(PodIdentity(PodUid("u-a")), "main")).pod.name == "a"
        with pytest.raises(KubeletAway):
            await it.requests(PodIdentity(PodUid("new")), "main")
        assert it.finding().level == "warning"

    scene(play)


def test_the_end_of_a_pod_is_told_at_once_whatever_its_kind() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        gone: list[str] = []
        it.on_gone.append(gone.append)
        api.put(PODS, pod("deleted", "u-1"))
        over = api.put(PODS, pod("over", "u-2"))
        api.put(PODS, pod("anew", "u-3"))
        await until(lambda: len(it.pods) == 3)
        api.remove(PODS, "default/deleted")
        over["status"] = {"phase": "Succeeded"}
        api.put(PODS, over)
        api.put(PODS, over)
        api.put(PODS, pod("anew", "u-4"))
        await until(lambda: len(gone) >= 3)
        assert gone == ["u-1", "u-2", "u-3"]
        assert (await it.requests(PodIdentity(PodUid("u-4")), "main")).pod.name == "anew"

    scene(play)


def test_owners_are_followed_upwards_and_kept_for_a_while() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        queue = {"kueue.x-k8s.io/queue-name": "train"}
        api.put("/apis/batch/v1/jobs", owned("c-1", {}, controller("CronJob", "c")))
        api.put("/apis/batch/v1/cronjobs", owned("c", queue))
        first = OwnerRef("batch/v1", "Job", "c-1", "uid-c-1")
        found = await it.owners("default", first)
        assert [one.ref.kind for one in found] == ["Job", "CronJob"]
        assert dict(found[1].labels) == queue
        await it.owners("default", first)
        asked = [path for method, path in api.requests if path.endswith("/c-1")]
        assert len(asked) == 1
        assert await it.owners("default", None) == ()
        assert await it.owners("default", OwnerRef("v1", "Node", "n1", "u")) == ()

    scene(play)


def test_an_owner_that_cannot_be_read_is_not_an_owner_without_labels() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        api.put("/apis/batch/v1/jobs", owned("j", {}))
        with pytest.raises(KubeletAway, match="was recreated"):
            await it.owners("default", OwnerRef("batch/v1", "Job", "j", "older"))
        with pytest.raises(KubeletAway, match="not found"):
            await it.owners("default", OwnerRef("batch/v1", "Job", "none", "u"))
        api.refuse = lambda method, path: (403, "Forbidden") if "jobs" in path else None
        with pytest.raises(NoPodSource, match="permission denied reading Job default/k"):
            await it.owners("default", OwnerRef("batch/v1", "Job", "k", "u"))
        api.refuse = lambda method, path: None
        for number in range(6):
            above = (controller("Job", f"l{number + 1}"),)
            api.put("/apis/batch/v1/jobs", owned(f"l{number}", {}, *above))
        with pytest.raises(NoPodSource, match="more than 5"):
            await it.owners("default", OwnerRef("batch/v1", "Job", "l0", "uid-l0"))

    scene(play)


def test_the_node_counts_what_its_gpus_have_whoever_writes_there() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        node = {
            "metadata": {"name": "n1", "annotations": {ANNOTATION: "old/name"}},
            "status": {"capacity": {"cpu": "2", "old/name": "9", "others/x": "1"}},
        }
        api.put(NODES, node)
        wanted: list[dict[str, int] | None] = [None]
        defects: list[BaseException] = []
        keeper = NodeSums(it, lambda: wanted[0], defects.append)
        await keeper.start()
        await until(lambda: it.facts is not None)
        assert keeper.writes_total == 0, "nothing is known of GPUs yet"
        wanted[0] = {"nvidia.com/gpumem": 160_000, "nvidia.com/gpucores": 200}
        keeper.look_soon()

        def capacity() -> dict[str, str]:
            return dict(api.get(NODES, "n1")["status"]["capacity"])

        full = {
            "cpu": "2", "others/x": "1", "nvidia.com/gpumem": "160000", "nvidia.com/gpucores": "200"
        }  # fmt: skip
        await until(lambda: capacity() == full)
        assert api.get(NODES, "n1")["status"]["allocatable"]["nvidia.com/gpucores"] == "200"
        zeroed = api.get(NODES, "n1")
        api.put(NODES, zeroed | {"status": {"capacity": full | {"nvidia.com/gpumem": "0"}}})
        await until(lambda: capacity() == full)
        await until(lambda: keeper.writes_total == 2)  # counted once it is answered
        writes = keeper.writes_total
        api.put(NODES, api.get(NODES, "n1"))  # the kubelet's heartbeat
        keeper.look_soon()
        await asyncio.sleep(0.1)
        assert keeper.writes_total == writes, "a patch that changes nothing is not sent"
        wanted[0] = {}
        keeper.look_soon()
        await until(lambda: capacity() == {"cpu": "2", "others/x": "1"})
        assert ANNOTATION not in api.get(NODES, "n1")["metadata"]["annotations"]
        api.refuse = lambda method, path: (403, "Forbidden") if method == "PATCH" else None
        wanted[0] = {"nvidia.com/gpumem": 1}
        keeper.look_soon()
        await until(lambda: keeper.trouble)
        assert keeper.finding().level == "warning"
        await keeper.close()
        assert defects == []

    scene(play)


def test_a_cordon_of_gpus_is_followed_and_taken_away() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        seen: list[frozenset[str]] = []
        it.on_node.append(lambda: seen.append(it.facts.cordoned if it.facts else frozenset()))
        for text in ("GPU-a, GPU-b,", ""):
            head = {"name": "n1", "annotations": {"hami.io/device-cordon": text}}
            api.put(NODES, {"metadata": head, "status": {}})
            wanted = {"GPU-a", "GPU-b"} if text else set()
            await until(lambda wanted=wanted: seen and seen[-1] == wanted)  # type: ignore[misc]

    scene(play)


def test_before_the_plugin_goes_the_scheduler_is_told_that_nothing_is_free() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        both = {"nvidia.com/gpu": "20", "cpu": "2"}
        api.put(
            NODES, {"metadata": {"name": "n1"}, "status": {"capacity": both, "allocatable": both}}
        )
        found: list[str] = []

        def before() -> None:
            found.append(api.get(NODES, "n1")["status"]["allocatable"]["nvidia.com/gpu"])

        await NodeDecommission(it, gpus, before, settles_s=0).close()
        assert found == ["20"]
        status = api.get(NODES, "n1")["status"]
        assert status["allocatable"] == {"nvidia.com/gpu": "0", "cpu": "2"}
        assert status["capacity"] == both, "what is used there is still there"
        asked = len(api.requests)
        await NodeDecommission(it, list, settles_s=0).close()
        assert len(api.requests) == asked, "nothing was served"
        await api.close()
        began_s = time.monotonic()
        await NodeDecommission(it, gpus, settles_s=3600).close()
        assert time.monotonic() - began_s < 10, "an unreachable API server delays nothing"

    scene(play, start=False)


def test_the_plugin_serves_until_pods_that_are_bound_already_are_admitted() -> None:
    """A busy kubelet admits them seconds after they were bound; without the plugin it would reject them for good."""

    async def play(api: ApiServer, it: Cluster) -> None:
        api.put(NODES, {"metadata": {"name": "n1"}, "status": {}})
        bound = pod("bound", "u-bound")
        bound["status"] = {"phase": "Pending"}
        other = pod("other", "u-other")
        other["status"], other["spec"]["containers"] = {"phase": "Pending"}, []
        for one in (bound, other):
            api.put(PODS, one)
        async with asyncio.timeout(30):
            while len(it.pods_here()) < 2:
                await asyncio.sleep(0.01)
            closing = asyncio.create_task(NodeDecommission(it, gpus, settles_s=0).close())
            await asyncio.sleep(0.5)
            assert not closing.done(), "the kubelet has not admitted it"
            bound["status"] = {"phase": "Pending", "startTime": "2026-11-28T09:00:00Z"}
            api.put(PODS, bound)
            await closing
        assert api.get(NODES, "n1")["status"]["allocatable"] == {"nvidia.com/gpu": "0"}

    scene(play)


@pytest.mark.parametrize("ever_admitted", [True, False])
def test_the_zero_is_written_after_the_pods_that_the_controller_has_bound_are_admitted(
    monkeypatch: pytest.MonkeyPatch, ever_admitted: bool
) -> None:
    """A kubelet that admits a pod by the zero rejects it if another one has just ended."""
    monkeypatch.setattr(decommission, "ANNOUNCED_S", 3600 if ever_admitted else 0.1)
    monkeypatch.setattr(decommission, "ADMITTED_S", 3600 if ever_admitted else 0.5)

    async def play(api: ApiServer, it: Cluster) -> None:
        api.put(NODES, {"metadata": {"name": "n1"}, "status": {}})
        bound = {**pod("bound", "u-bound"), "status": {"phase": "Pending"}}
        api.put(PODS, bound)
        await until(lambda: bool(it.pods_here()))
        stopping = NodeDecommission(it, gpus, queue=TOLD, settles_s=0)
        closing = asyncio.create_task(stopping.close())
        if ever_admitted:
            await asyncio.sleep(0.5)
            assert "allocatable" not in api.get(NODES, "n1")["status"]
            api.put(PODS, {**bound, "status": {"startTime": "2026-11-28T09:00:00Z"}})
        await closing
        assert api.get(NODES, "n1")["status"]["allocatable"] == {"nvidia.com/gpu": "0"}

    scene(play)


def test_a_status_of_the_kubelet_while_the_plugin_stops_lets_no_pod_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The devices are still served, so each status of it has them again. A pod that is bound then would be rejected once they are not."""
    monkeypatch.setattr(decommission, "DEADLINE_S", 60)
    full = {"capacity": {"nvidia.com/gpu": "20"}, "allocatable": {"nvidia.com/gpu": "20"}}

    async def play(api: ApiServer, it: Cluster) -> None:
        def put_status() -> None:
            api.put(NODES, {"metadata": {"name": "n1", "uid": "u-n1"}, "status": full})

        def free() -> str:
            return str(api.get(NODES, "n1")["status"]["allocatable"]["nvidia.com/gpu"])

        put_status()
        await until(lambda: it.offers(["nvidia.com/gpu"]))
        stopping = NodeDecommission(it, gpus, settles_s=0.6)
        closing = asyncio.create_task(stopping.close())
        await until(lambda: free() == "0" and not it.offers(["nvidia.com/gpu"]))
        put_status()
        again_s = time.monotonic()
        await closing
        assert free() == "0"
        assert time.monotonic() - again_s >= 0.6, "who was bound meanwhile is admitted"
        await it.close()
        put_status()
        await stopping.last.close()
        assert free() == "0", "the kubelet's last status before the devices went"

    scene(play)


def test_nothing_is_withdrawn_at_the_end_that_was_not_before() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        stopping = NodeDecommission(it, list, settles_s=0)
        await stopping.close()
        await stopping.last.close()
        assert api.requests == []

    scene(play, start=False)


def test_what_is_counted_can_be_taken_away_everywhere() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        full = {"capacity": {"a/b": "1", "cpu": "2"}, "allocatable": {"a/b": "1", "cpu": "2"}}
        for name in ("n1", "n2", "others"):
            notes = {ANNOTATION: "a/b"} if name != "others" else {}
            api.put(NODES, {"metadata": {"name": name, "annotations": notes}, "status": full})
        access = Access(api.url)
        assert await module.uncount(access, "n1", ANNOTATION) == ({"n1": ["a/b"]}, [])
        assert await module.uncount(access, "", ANNOTATION) == ({"n2": ["a/b"]}, [])
        assert await module.uncount(access, "", ANNOTATION) == ({}, [])
        for name in ("n1", "n2"):
            assert api.get(NODES, name)["status"]["allocatable"] == {"cpu": "2"}
        assert api.get(NODES, "others")["status"] == full
        api.refuse = lambda method, path: (403, "Forbidden")
        _, problems = await module.uncount(access, "", ANNOTATION)
        assert "403" in problems[0]

    scene(play, start=False)


def test_a_warning_is_an_event_of_the_pod() -> None:
    async def play(api: ApiServer, it: Cluster) -> None:
        api.put(PODS, pod("a", "u-a"))
        await until(lambda: len(it.pods) == 1)
        await it.record_pod_event(PodUid("u-a"), "SluiceDefaultsUsed", "because")
        (event,) = [one for (where, _), one in api.objects.items() if where == "/api/v1/events"]
        assert event["involvedObject"]["uid"] == "u-a"
        assert (event["type"], event["reason"]) == ("Warning", "SluiceDefaultsUsed")
        await it.record_pod_event(PodUid("unknown"), "x", "y")
        api.refuse = lambda method, path: (403, "Forbidden")
        await it.record_pod_event(PodUid("u-a"), "x", "y")  # said in the log, and that is all

    scene(play)


def test_a_static_pod_is_known_by_the_kubelets_own_uid() -> None:
    facts = read_pod(pod("etcd-n1", "api-uid", annotations={MIRRORED: "kubelets-uid"}))
    assert (facts.uid, facts.api_uid) == ("kubelets-uid", "api-uid")


class Says:
    def __init__(self, what: Any) -> None:
        self._what = what

    async def requests(self, pod: PodIdentity, container: str) -> Any:
        if isinstance(self._what, Exception):
            raise self._what
        return self._what

    async def owners(self, namespace: str, first: OwnerRef | None) -> Any:
        return await self.requests(PodIdentity(PodUid("")), "")


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        ([Says("api"), Says("kubelet")], "api"),
        ([Says(KubeletAway("away")), Says("kubelet")], "kubelet"),
        ([Says(NoPodSource("forbidden")), Says("kubelet")], "kubelet"),
        ([Says(KubeletAway("away")), Says(NoPodSource("no socket"))], KubeletAway),
        ([Says(NoPodSource("forbidden")), Says(NoPodSource("no socket"))], NoPodSource),
        ([], NoPodSource),
    ],
    ids=[
        "the first that can say",
        "another one while the first is away",
        "another one where the first may not",
        "who is away may know, so it is waited for",
        "nobody can say",
        "nobody is there",
    ],
)
def test_who_is_asked_about_a_pod(sources: list[PodSource], wanted: Any) -> None:
    asked = PodSources(sources, "no kubeconfig").requests(PodIdentity(PodUid("u")), "main")
    if isinstance(wanted, str):
        assert asyncio.run(asked) == wanted  # type: ignore[comparison-overlap]
    else:
        with pytest.raises(wanted):
            asyncio.run(asked)


def test_sums_are_of_what_is_offered_in_the_nodes_own_names() -> None:
    one = GpuCapacity(GpuUuid("GPU-1"), 0, "x", Bytes(80_000 << 20), Bytes(0), 10)
    other = GpuCapacity(GpuUuid("GPU-2"), 1, "x", Bytes(40_001 << 20), Bytes(0), 10)
    shown = [Offer(GpuUuid("GPU-1"), True, None, 10), Offer(GpuUuid("GPU-2"), False, None, 10)]
    names = ResourceNames(memory="x/mem", cores="x/cores", memory_factor=2)
    found = sums(shown, {"GPU-1": one, "GPU-2": other}, names)
    assert found["x/mem"] == 40_000 + 20_000
    assert found["x/cores"] == found[names.memory_percent] == 200
    assert found[names.priority] == 20
    assert patch({"a": 1}, ["a", "b"], {"a": "1", "b": "2", "c": "3"}) == {"b": None}
    assert patch({"a": 1}, [], {}) == {"a": "1"}
