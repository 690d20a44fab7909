"""Which queues have something new to say once a workload has changed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, OBJECTS, WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.status.queue_status import QueueStatus
from queuecontroller.cluster.writers.queue_writer import QueueWriter
from queuecontroller.scheduler.model.objects import WorkloadKey
from queuecontroller.state.book import Book, BookSettings
from queuecontroller.state.records import Snapshot

API = "kueue.x-k8s.io/v1beta2"
KEY = WorkloadKey("team/one")
AT = "2026-11-22T10:00:00Z"
FLAVOR = {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": "plain"}, "spec": {}}
QUEUE = {
    "apiVersion": API,
    "kind": "ClusterQueue",
    "metadata": {"name": "big"},
    "spec": {
        "namespaceSelector": {},
        "resourceGroups": [
            {
                "coveredResources": ["cpu"],
                "flavors": [{"name": "plain", "resources": [{"name": "cpu", "nominalQuota": "4"}]}],
            }
        ],
    },
}
DOOR = {
    "apiVersion": API,
    "kind": "LocalQueue",
    "metadata": {"name": "q", "namespace": "team"},
    "spec": {"clusterQueue": "big"},
}


def admitted() -> dict[str, Any]:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    sets = [{"name": "main", "count": 1, "template": {"spec": {"containers": [container]}}}]
    given = {"name": "main", "count": 1, "flavors": {"cpu": "plain"}, "resourceUsage": {"cpu": "1"}}
    said = {"status": "True", "reason": "r", "message": "m", "lastTransitionTime": AT}
    head = {"name": "one", "namespace": "team", "uid": "u", "creationTimestamp": AT}
    return {
        "apiVersion": API,
        "kind": "Workload",
        "metadata": head,
        "spec": {"queueName": "q", "podSets": sets},
        "status": {
            "admission": {"clusterQueue": "big", "podSetAssignments": [given]},
            "conditions": [{"type": name, **said} for name in ("QuotaReserved", "Admitted")],
        },
    }


def test_who_held_quota_is_missed_by_its_cluster_queue_after_its_local_queue_went() -> None:
    """A ClusterQueue that is being deleted is let go with its last workload: whoever does not tell
    it of that keeps it for ever."""
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), 0)
    made = Mirror(book, ObjectCache())
    status = QueueStatus(made)
    book.apply([FLAVOR, QUEUE, DOOR], False, 1)
    made.workload(KEY, admitted(), 2)
    assert ("ClusterQueue", "", "big") in set(status.touched(KEY))
    assert book.engine.cache.queues["big"].workloads
    made.object(LOCAL_QUEUES, "team/q", None, 3)
    made.workload(KEY, None, 4)
    assert not book.engine.cache.queues["big"].workloads
    assert set(status.touched(KEY)) == {
        ("LocalQueue", "team", "q"),
        ("ClusterQueue", "", "big"),
    }
    assert not set(status.touched(KEY)), "told once"


def of_status(*documents: dict[str, Any]) -> tuple[Mirror, QueueStatus]:
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), 0)
    book.apply([SHARING], False, 1)
    mirror = Mirror(book, ObjectCache())
    for one in documents:
        mirror.cache.take(KINDS_BY_NAME[one["kind"]], one)
    mirror.begin(AT_NS)
    return mirror, QueueStatus(mirror)


KINDS_BY_NAME = {one.kind: one for one in (*OBJECTS, WORKLOADS)}
AT_NS = 1_795_341_600 * 10**9
SHARING = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "metadata": {"name": "configuration"},
    "admissionFairSharing": {"usageHalfLifeTime": "1h", "usageSamplingInterval": "1s"},
}
BY_USAGE = {**QUEUE, "spec": {**QUEUE["spec"], "admissionScope": {"admissionMode": "UsageBasedAdmissionFairSharing"}}}  # fmt: skip


def versioned(document: dict[str, Any]) -> dict[str, Any]:
    head = {**document["metadata"], "resourceVersion": "1", "uid": document["metadata"]["name"]}
    return {**document, "metadata": head}


def test_the_usage_of_a_local_queue_is_in_its_status_and_outlives_a_leader() -> None:
    objects = [versioned(one) for one in (FLAVOR, BY_USAGE, admitted())]
    door = versioned(DOOR)
    _, status = of_status(*objects, door)
    first = status.status(door, AT_NS)["fairSharing"]["admissionFairSharingStatus"]
    assert first["consumedResources"] == {"cpu": "1"}, "as if it had always been so"
    written = {**first, "consumedResources": {"cpu": "7"}, "lastUpdate": "2026-11-22T10:00:00Z"}
    kept = {**door, "status": {"fairSharing": {"admissionFairSharingStatus": written}}}
    _, after = of_status(*objects, kept)
    again = after.status(kept, AT_NS)["fairSharing"]["admissionFairSharingStatus"]
    assert again["consumedResources"] == {"cpu": "7"}


def test_a_flavor_of_a_topology_that_is_not_there_closes_its_queue() -> None:
    flavor = versioned({**FLAVOR, "spec": {"topologyName": "racks", "nodeLabels": {"a": "b"}}})
    queue = versioned(QUEUE)
    mirror, status = of_status(flavor, queue, versioned(DOOR))
    (active,) = status.status(queue, AT_NS)["conditions"]
    assert (active["status"], active["reason"]) == ("False", "TopologyNotFound")
    assert "racks" in active["message"]
    assert "racks" in (mirror.book.engine.cache.why_inactive("big") or "")
    levels = [{"nodeLabel": "rack"}]
    topology = {"apiVersion": API, "kind": "Topology", "metadata": {"name": "racks"}, "spec": {"levels": levels}}  # fmt: skip
    mirror.object(KINDS_BY_NAME["Topology"], "racks", topology, AT_NS)
    (active,) = status.status(queue, AT_NS)["conditions"]
    assert active["status"] == "True"
    mirror.object(KINDS_BY_NAME["Topology"], "racks", None, AT_NS)
    (active,) = status.status(queue, AT_NS)["conditions"]
    assert active["reason"] == "TopologyNotFound"


def test_a_cluster_queue_that_is_deleted_while_it_is_used_says_so() -> None:
    """Its finalizer keeps it as long as a workload holds quota of it."""
    written: list[tuple[str, Any]] = []
    book = Book(BookSettings(), False, lambda: "0")
    book.restore(Snapshot("", 1, 0), 0)
    cache = ObjectCache()
    made = Mirror(book, cache)
    book.apply([FLAVOR, QUEUE, DOOR], False, 1)
    made.workload(KEY, admitted(), 2)
    head: dict[str, Any] = {
        "name": "big",
        "uid": "u-big",
        "resourceVersion": "7",
        "deletionTimestamp": AT,
    }
    head["finalizers"] = ["kueue.x-k8s.io/resource-in-use"]
    going = {**QUEUE, "metadata": head}

    class Client:
        async def merge_patch(self, kind: Any, name: str, patch: Any, *rest: Any) -> Any:
            written.append((name, patch))
            return going

    class Shell:
        def now_ns(self) -> int:
            return 3

    cache.take(CLUSTER_QUEUES, going)
    writer = QueueWriter(cast(Any, Shell()), made, cast(Any, Client()), lambda: True)
    asyncio.run(writer._write(("ClusterQueue", "", "big")))
    ((name, patch),) = written
    (active,) = patch["status"]["conditions"]
    assert (name, active["type"], active["status"]) == ("big", "Active", "False")
    assert active["reason"] == "Terminating"
    assert active["message"] == "Can't admit new workloads; clusterQueue is terminating"
    written.clear()
    made.workload(KEY, None, 4)
    asyncio.run(writer._write(("ClusterQueue", "", "big")))
    assert written == [("big", {"metadata": {"finalizers": []}})], "it goes, and has no status"
