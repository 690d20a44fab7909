"""The visibility API without a server: who is believed behind a front proxy, what a path asks for, who waits by the objects alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queuecontroller.cluster.cache.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from queuecontroller.cluster.cache.objects import ObjectCache
from queuecontroller.cluster.setup.front_proxy import FrontProxy, User, front_proxy, review
from queuecontroller.cluster.status.visibility import (
    ROOT,
    Question,
    Wrong,
    answer,
    question,
    table,
    wants_table,
)

PEM = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
PROXY = FrontProxy(PEM, ("front",), uid_headers=("X-Remote-Uid",))


def certificate(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "o"),), (("commonName", name),))}


@pytest.mark.parametrize(
    ("proxy", "shown", "vouches"),
    [
        (PROXY, certificate("front"), True),
        (PROXY, certificate("other"), False),
        (PROXY, {}, False),
        (PROXY, None, False),
        (FrontProxy(PEM), certificate("whoever"), True),
        (FrontProxy(PEM), {}, False),
    ],
    ids=["its name", "another's", "none shown", "no TLS", "any name will do", "but not none"],
)
def test_who_is_the_front_proxy(proxy: FrontProxy, shown: Any, vouches: bool) -> None:
    assert proxy.vouches(shown) is vouches


def test_headers_say_who_asks() -> None:
    headers = [
        ("x-remote-user", "ada"),
        ("X-Remote-Group", "a"),
        ("X-Remote-Group", "b"),
        ("X-Remote-Uid", "7"),
        ("X-Remote-Extra-Example.com%2fScope", "read"),
        ("X-Other", "no"),
    ]
    user = PROXY.user(headers)
    assert user == User("ada", "7", ("a", "b"), (("example.com/scope", ("read",)),))
    assert PROXY.user([("X-Remote-Group", "system:masters")]) is None
    assert PROXY.user([("X-Remote-User", "")]) is None
    spec = review(user, {"verb": "get"})["spec"]
    assert spec == {
        "user": "ada",
        "groups": ["a", "b"],
        "uid": "7",
        "extra": {"example.com/scope": ["read"]},
        "resourceAttributes": {"verb": "get"},
    }


def test_the_configuration_of_the_front_proxy() -> None:
    data = {
        "requestheader-client-ca-file": PEM,
        "requestheader-allowed-names": json.dumps(["front"]),
        "requestheader-username-headers": json.dumps(["X-User"]),
        "requestheader-group-headers": "no json",
    }
    found = front_proxy({"data": data})
    assert found is not None
    assert (found.names, found.user_headers) == (("front",), ("X-User",))
    assert found.group_headers == ("X-Remote-Group",)
    assert front_proxy({"data": {}}) is None
    assert front_proxy({}) is None


@pytest.mark.parametrize(
    ("path", "query", "wanted"),
    [
        ("v1beta2", "", "v1beta2"),
        ("v1beta1/", "", "v1beta1"),
        (
            "v1beta2/clusterqueues/a%2Fb/pendingworkloads",
            "limit=5&offset=2",
            Question("v1beta2", "clusterqueues", "a/b", "", 2, 5),
        ),
        (
            "v1beta1/namespaces/n/localqueues/q/pendingworkloads",
            "",
            Question("v1beta1", "localqueues", "q", "n"),
        ),
        ("v1", "", 404),
        ("", "", 404),
        ("v1beta2/localqueues/q/pendingworkloads", "", 404),
        ("v1beta2/namespaces/n/clusterqueues/q/pendingworkloads", "", 404),
        ("v1beta2/clusterqueues/q", "", 404),
        ("v1beta2/clusterqueues/q/pendingworkloads", "limit=x", 400),
        ("v1beta2/clusterqueues/q/pendingworkloads", "limit=10001", 400),
        ("v1beta2/clusterqueues/q/pendingworkloads", "offset=9999999999", 400),
    ],
)
def test_what_a_path_asks_for(path: str, query: str, wanted: Any) -> None:
    if isinstance(wanted, int):
        with pytest.raises(Wrong) as wrong:
            question(f"{ROOT}/{path}", query)
        assert wrong.value.status == wanted
    else:
        assert question(f"{ROOT}/{path}", query) == wanted


def of(kind: str, name: str, namespace: str = "", **fields: Any) -> dict[str, Any]:
    head = {"name": name, "uid": name, "resourceVersion": "1"}
    if namespace:
        head["namespace"] = namespace
    return {"kind": kind, "metadata": {**head, **fields.pop("head", {})}, **fields}


def waiting(name: str, at: str, **spec: Any) -> dict[str, Any]:
    status = spec.pop("status", {})
    made = {"queueName": "q", **spec}
    return of("Workload", name, "n", head={"creationTimestamp": at}, spec=made, status=status)


def world() -> ObjectCache:
    made = ObjectCache()
    made.take(CLUSTER_QUEUES, of("ClusterQueue", "cq"))
    made.take(LOCAL_QUEUES, of("LocalQueue", "q", "n", spec={"clusterQueue": "cq"}))
    made.take(LOCAL_QUEUES, of("LocalQueue", "r", "n", spec={"clusterQueue": "cq"}))
    over = [{"type": "Finished", "status": "True"}]
    late = [
        {
            "type": "Evicted",
            "status": "True",
            "reason": "PodsReadyTimeout",
            "lastTransitionTime": "2026-01-01T00:00:09Z",
        }
    ]
    for one in (
        waiting("b", "2026-01-01T00:00:02Z"),
        waiting("a", "2026-01-01T00:00:02Z", queueName="r"),
        waiting("first", "2026-01-01T00:00:05Z", priority=5),
        waiting("put-back", "2026-01-01T00:00:01Z", status={"conditions": late}),
        waiting("runs", "2026-01-01T00:00:00Z", status={"admission": {"clusterQueue": "cq"}}),
        waiting("over", "2026-01-01T00:00:00Z", status={"conditions": over}),
        waiting("off", "2026-01-01T00:00:00Z", active=False),
        waiting("elsewhere", "2026-01-01T00:00:00Z", queueName="x"),
    ):
        made.take(WORKLOADS, one)
    return made


def names(summary: Any) -> list[str]:
    return [one["metadata"]["name"] for one in summary["items"]]


def test_by_the_objects_alone() -> None:
    asked = Question("v1beta2", "clusterqueues", "cq")
    found = answer(asked, world(), None, None, 0)
    assert names(found) == ["first", "a", "b", "put-back"]
    assert [one["positionInLocalQueue"] for one in found["items"]] == [0, 0, 1, 2]
    local = Question("v1beta2", "localqueues", "q", "n", offset=1, limit=1)
    (one,) = answer(local, world(), None, None, 0)["items"]
    assert (one["metadata"]["name"], one["positionInClusterQueue"]) == ("b", 2)
    rows = table(found)["rows"]
    assert rows[0]["cells"][:5] == ["first", "n", "q", 5, 0]


def test_a_queue_that_is_not_there() -> None:
    for asked in (
        Question("v1beta2", "clusterqueues", "none"),
        Question("v1beta2", "localqueues", "cq", "n"),
    ):
        with pytest.raises(Wrong, match="not found"):
            answer(asked, world(), None, None, 0)


@pytest.mark.parametrize(
    ("accept", "rows"),
    [
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", True),
        ("application/json", False),
        ("application/json,application/json;as=Table;v=v1;g=meta.k8s.io", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_rows_for_whom_asks_for_them_first(accept: str, rows: bool) -> None:
    assert wants_table([accept]) is rows
