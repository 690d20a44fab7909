"""Pods that ask for shares, made at a real API server: changed by HAMi's rules, told of misspellings, refused where they lie, and
never past their namespace's quota."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane, ControlPlaneError
from tests.cluster.fixtures import control_plane
from tests.cluster.queueing import Replica, apply, asked
from tests.kit.node import until
from tests.kit.places import REPO
from tests.queue.gpushares.vendors.plugins import PLUGINS, Simulated

__all__ = ["control_plane"]
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/team/pods"
MEM = "nvidia.com/gpumem"


@pytest.fixture(scope="module")
def served(
    control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ControlPlane, Replica]]:
    place = tmp_path_factory.mktemp("shares")
    with asked(control_plane, place, "shares.scheduler=sluice-scheduler") as replica:
        team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
        account = {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "default", "namespace": "team"},
        }
        apply(control_plane, team, account)

        def is_asked() -> bool:
            made: Any = control_plane.api.call("POST", f"{PODS}?dryRun=All", pod("try", {MEM: 1}))
            return made["spec"]["schedulerName"] == "sluice-scheduler"

        until("pods are asked about", is_asked, 60)
        yield control_plane, replica


@pytest.fixture
def plane(served: tuple[ControlPlane, Replica]) -> ControlPlane:
    return served[0]


def pod(name: str, limits: dict[str, Any], **annotations: str) -> dict[str, Any]:
    texts = {key: str(value) for key, value in limits.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": texts}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "annotations": annotations},
        "spec": {"containers": [container]},
    }


def test_a_pod_gets_what_it_leaves_out(plane: ControlPlane) -> None:
    made = plane.api.create("pods", "team", pod("defaults", {MEM: 4000}))
    resources = made["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {MEM: "4k", "nvidia.com/gpu": "1", "nvidia.com/gpucores": "0"}
    assert resources["requests"] == resources["limits"]
    assert made["spec"]["schedulerName"] == "sluice-scheduler"
    whole = plane.api.create("pods", "team", pod("whole", {"nvidia.com/gpu": 1}))
    limits = whole["spec"]["containers"][0]["resources"]["limits"]
    added = {"nvidia.com/gpucores": "100"}
    assert limits == {"nvidia.com/gpu": "1", **added}, "and the other webhook does not see it"
    plain = plane.api.create("pods", "team", pod("plain", {"cpu": "1"}))
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    assert not plain["metadata"].get("annotations")


def test_words_of_others_are_taken(plane: ControlPlane) -> None:
    kai = plane.api.create("pods", "team", pod("kai", {"cpu": "1"}, **{"gpu-fraction": "0.5"}))
    limits = kai["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpumem-percentage"] == "50"
    volcano = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 2000}
    made = plane.api.create("pods", "team", pod("volcano", volcano))
    limits = made["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "1", MEM: "2k", "nvidia.com/gpucores": "0"}


def test_a_pod_in_mode_mig_asks_for_an_instance_that_a_node_has(plane: ControlPlane) -> None:
    plane.api.create("nodes", "", {"metadata": {"name": "cut"}})
    amounts = {"nvidia.com/mig-1g.10gb": "7", "nvidia.com/mig-3g.40gb": "2", "pods": "10"}
    plane.api.patch("/api/v1/nodes/cut/status", {"status": {"capacity": amounts}})
    document = pod("mig", {"nvidia.com/gpu": 1, MEM: 12_000}, **{"nvidia.com/vgpu-mode": "mig"})

    def asks() -> Any:
        made: Any = plane.api.call("POST", f"{PODS}?dryRun=All", document)
        return made["spec"]["containers"][0]["resources"]

    until("the node is heard of", lambda: MEM not in asks()["limits"], 60)
    assert asks() == {kind: {"nvidia.com/mig-3g.40gb": "1"} for kind in ("limits", "requests")}
    made: Any = plane.api.call("POST", f"{PODS}?dryRun=All", document)
    assert made["spec"]["schedulerName"] == "default-scheduler"
    said = plane.api.warnings("POST", f"{PODS}?dryRun=All", document)
    assert any("requests nvidia.com/mig-3g.40gb: 1" in one for one in said)


def test_misspellings_are_told_by_kubectl(plane: ControlPlane) -> None:
    document = pod("misspelt", {MEM: 1}, **{"nvidia.com/use-gputypes": "H100"})
    said = plane.api.warnings("POST", f"{PODS}?dryRun=All", document)
    assert any("did you mean nvidia.com/use-gputype?" in one for one in said)


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_every_vendors_pod_is_taken(plane: ControlPlane, plugin: Simulated) -> None:
    document = pod(f"of-{plugin.word.lower()}", plugin.limits)
    made: Any = plane.api.call("POST", f"{PODS}?dryRun=All", document)
    assert made["spec"]["schedulerName"] == "sluice-scheduler"


def test_what_was_decided_is_ours_to_write(
    served: tuple[ControlPlane, Replica],
) -> None:
    plane, _ = served
    key = "sluice.dev/placement"
    with pytest.raises(ApiError, match="only the scheduler may write it"):
        plane.api.create("pods", "team", pod("forged", {MEM: 1}, **{key: "{}"}))
    plane.api.create("pods", "team", pod("honest", {MEM: 1}))

    def guarded() -> bool:
        try:
            plane.api.patch(f"{PODS}/honest", {"metadata": {"annotations": {key: "{}"}}})
        except ApiError as error:
            return "only the scheduler may write it" in str(error)
        plane.api.patch(f"{PODS}/honest", {"metadata": {"annotations": {key: None}}})
        return False

    until("no other user changes it", guarded, 30)
    plane.api.patch(f"{PODS}/honest", {"metadata": {"annotations": {"note": "mine"}}})
    user = "system:serviceaccount:sluice:sluice-queue"
    plane.kubectl("annotate", "pod", "honest", "-n", "team", f"{key}=x", f"--as={user}", "--as-group=system:masters")  # fmt: skip
    assert plane.api.get(f"{PODS}/honest")["metadata"]["annotations"][key] == "x"


def test_a_privileged_container_is_refused(plane: ControlPlane) -> None:
    document = pod("privileged", {MEM: 1})
    document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(ApiError, match="container main is privileged"):
        plane.api.create("pods", "team", document)


@pytest.mark.parametrize(
    ("limits", "context", "refused"),
    [
        ({MEM: 1}, {"privileged": True}, True),
        ({MEM: 1}, {"runAsUser": 1000}, False),
        ({"cpu": "1"}, {"privileged": True}, False),
    ],
    ids=["privileged", "another profile", "a pod without devices"],
)
def test_so_is_one_that_is_added_to_debug_a_pod_with_devices(
    plane: ControlPlane, limits: dict[str, Any], context: dict[str, Any], refused: bool
) -> None:
    name = f"debugged-{'-'.join(context).lower()}-{len(str(limits))}"
    made = plane.api.create("pods", "team", pod(name, limits))
    debugger = {"name": "debugger", "image": "none", "securityContext": context}
    made["spec"]["ephemeralContainers"] = [debugger]
    path = f"{PODS}/{name}/ephemeralcontainers"
    if refused:
        with pytest.raises(ApiError, match="container debugger is privileged"):
            plane.api.call("PUT", path, made)
    else:
        plane.api.call("PUT", path, made)


def test_who_opts_out_is_left_alone(plane: ControlPlane) -> None:
    document = pod("opted-out", {MEM: 5})
    document["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    made = plane.api.create("pods", "team", document)
    assert made["spec"]["schedulerName"] == "default-scheduler"


def test_forty_at_once_get_no_more_than_the_quota(plane: ControlPlane) -> None:
    plane.api.create("namespaces", "", {"metadata": {"name": "limited"}, "apiVersion": "v1", "kind": "Namespace"})  # fmt: skip
    head = {"name": "shares", "namespace": "limited"}
    hard = {f"limits.{MEM}": "10000", "limits.nvidia.com/gpucores": "1000"}
    apply(
        plane,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**head, "name": "default"}},
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": head, "spec": {"hard": hard}},
    )
    path = "/api/v1/namespaces/limited/pods"

    def one(name: str, memory: int, dry: bool = False) -> str:
        document = pod(name, {"nvidia.com/gpu": 2, MEM: memory})
        document["metadata"]["namespace"] = "limited"
        try:
            plane.api.call("POST", path + ("?dryRun=All" if dry else ""), document)
        except ApiError as error:
            return str(error)
        return ""

    until("the quota is known", lambda: bool(one("too-large", 5001, dry=True)), 30)
    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(lambda i: one(f"pod-{i}", 500), range(40)))
    assert said.count("") == 10, "each takes 2 x 500"
    refused = next(one for one in said if one)
    assert f"exceeding resource quota shares: {MEM}: 1000 are requested, 10000 of 10000" in refused
    there = plane.api.get(path)["items"]
    assert len(there) == 10
    for gone in there[:3]:
        plane.api.delete(f"{path}/{gone['metadata']['name']}?gracePeriodSeconds=0")
    until("what is given back can be had", lambda: not one("later", 1500), 30)
    assert "10000 of 10000 are used" in one("later-still", 1)


def test_a_running_pod_is_resized_within_its_quota_and_kubernetes_resizes_none_of_these(
    plane: ControlPlane,
) -> None:
    path = "/api/v1/namespaces/limited/pods/large"
    key = "resize.sluice.dev/main"
    there = plane.api.get("/api/v1/namespaces/limited/pods")["items"]
    for one in there:
        name = one["metadata"]["name"]
        plane.api.delete(f"/api/v1/namespaces/limited/pods/{name}?gracePeriodSeconds=0")
    document = pod("large", {"nvidia.com/gpu": 2, MEM: 3000})
    document["metadata"]["namespace"] = "limited"

    def made() -> bool:
        try:
            plane.api.call("POST", "/api/v1/namespaces/limited/pods", document)
        except ApiError:
            return False
        return True

    until("there is room again", made, 30)

    def annotate(text: str | None) -> None:
        plane.api.patch(path, {"metadata": {"annotations": {key: text}}})

    until("the pod is counted", lambda: not _refused(lambda: annotate("gpumem=4000")), 30)
    with pytest.raises(ApiError, match="exceeding resource quota shares"):
        annotate("gpumem=5001")
    with pytest.raises(ApiError, match="is not NAME=AMOUNT"):
        annotate("memory=5")
    annotate("gpumem=5000")
    annotate(None)
    resized = {"resources": {"limits": {MEM: "100", "nvidia.com/gpu": "2"}}}
    with pytest.raises(ApiError, match="only cpu and memory resources are mutable"):
        plane.api.patch(f"{path}/resize", {"spec": {"containers": [{"name": "main", **resized}]}})


def test_a_share_policy_takes_a_right_in_the_namespace(plane: ControlPlane) -> None:
    text = (REPO / "packaging" / "helm" / "sluice" / "files" / "share-rights.yaml").read_text()
    plane.kubectl("apply", "-f", "-", given=text)
    group = {"apiGroups": ["sluice.dev"], "resources": ["sharepolicies"]}
    rules = [{**group, "resourceNames": ["elastic"], "verbs": ["use"]}]
    rules.append({"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]})
    api = "rbac.authorization.k8s.io"
    head = {"name": "sharer", "namespace": "team"}
    users = [{"kind": "User", "name": "ann"}]
    ref = {"apiGroup": api, "kind": "Role", "name": "sharer"}
    apply(
        plane,
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": head, "rules": rules},
        {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": head, "roleRef": ref, "subjects": users},
    )  # fmt: skip

    def said(policy: str, account: str = "default") -> str:
        document = pod("sharing", {MEM: 5}, **{"sluice.dev/share-policy": policy})
        document["spec"]["serviceAccountName"] = account
        try:
            plane.kubectl(
                "create", "--dry-run=server", "-f", "-", "--as=ann", given=json.dumps(document)
            )
        except ControlPlaneError as error:
            return str(error)
        return ""

    try:
        refused = "neither you nor the service account default may use"
        until("the policy is in force", lambda: refused in said("exclusive"), 60)
        until("the role is, too", lambda: not said("elastic"), 30)
        account = {"kind": "ServiceAccount", "name": "trainer", "namespace": "team"}
        names = {"name": "trainer", "namespace": "team"}
        may = [{**group, "verbs": ["use"]}]
        own = {"apiGroup": api, "kind": "Role", "name": "trainer"}
        apply(
            plane,
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": names},
            {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": names, "rules": may},
            {"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": names, "roleRef": own, "subjects": [account]},
        )  # fmt: skip
        until("the account may", lambda: not said("exclusive", "trainer"), 30)
        assert refused in said("exclusive")
    finally:
        plane.kubectl("delete", "-f", "-", given=text)


def test_a_share_policy_in_a_claim_takes_the_right_too(plane: ControlPlane) -> None:
    """Without it any user could make a share elastic, whose weight counts in no sum."""
    text = (REPO / "packaging" / "helm" / "sluice" / "files" / "share-rights.yaml").read_text()
    plane.kubectl("apply", "-f", "-", given=text)
    rights = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceclaimtemplates"],
            "verbs": ["create"],
        },
        {
            "apiGroups": ["sluice.dev"],
            "resources": ["sharepolicies"],
            "resourceNames": ["hard"],
            "verbs": ["use"],
        },
    ]
    api = "rbac.authorization.k8s.io"
    head = {"name": "claimer", "namespace": "team"}
    apply(
        plane,
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": head, "rules": rights},
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": head,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": "claimer"},
            "subjects": [{"kind": "User", "name": "ben"}],
        },
    )

    def said(kind: str, driver: str = "sluice.dev", **parameters: object) -> str:
        given = {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", **parameters}
        config = [{"opaque": {"driver": driver, "parameters": given}}]
        exactly = {"deviceClassName": "gpu.sluice.dev"}
        requests = [{"name": "gpu", "exactly": exactly}]
        spec: dict[str, object] = {"devices": {"requests": requests, "config": config}}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "c", "namespace": "team"},
            "spec": spec if kind == "ResourceClaim" else {"spec": spec},
        }
        try:
            plane.kubectl(
                "create", "--dry-run=server", "-f", "-", "--as=ben", given=json.dumps(document)
            )
        except ControlPlaneError as error:
            return str(error)
        return ""

    try:
        for kind in ("ResourceClaim", "ResourceClaimTemplate"):
            refused = "you may not use one of the policies elastic"
            until("the policy is in force", lambda: refused in said(kind, policy="elastic"), 60)  # noqa: B023
            assert said(kind, policy="hard") == ""
            assert said(kind, priority=-1) == ""
            assert said(kind, driver="other.example", policy="elastic") == ""
    finally:
        plane.kubectl("delete", "-f", "-", given=text)


def _refused(do: Callable[[], None]) -> bool:
    try:
        do()
    except ApiError:
        return True
    return False


def test_kubectl_shows_why(plane: ControlPlane) -> None:
    document = json.dumps(pod("shown", {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 101}))
    with pytest.raises(ControlPlaneError, match="must be from 0 to 100, got 101"):
        plane.kubectl("apply", "-f", "-", given=document)


def test_while_no_replica_answers_new_pods_with_shares_are_refused(
    served: tuple[ControlPlane, Replica],
) -> None:
    """No scheduler would place them later. The last test of this module: it ends the replica."""
    plane, replica = served
    annotated = pod("annotated", {MEM: 1})
    plane.api.create("pods", "team", annotated)
    replica.end(signal.SIGKILL)
    for name, limits in (("memory", {MEM: 1}), ("cores", {"nvidia.com/gpucores": 10})):
        first = {**pod(name, {"cpu": 1}), "spec": {**pod(name, {"cpu": 1})["spec"]}}
        first["spec"]["initContainers"] = [
            {**pod("i", limits)["spec"]["containers"][0], "name": "i"}
        ]
        for document in (pod(name, limits), first):
            with pytest.raises(ApiError, match=r"failed calling webhook .*new-shares"):
                plane.api.create("pods", "team", document)
    apart = pod("apart", {MEM: 1})
    apart["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    for passed in (apart, pod("processors", {"cpu": 1}), pod("gpu", {"nvidia.com/gpu": 1})):
        made = plane.api.create("pods", "team", passed)
        assert made["spec"]["schedulerName"] == "default-scheduler"
    plane.api.patch(f"{PODS}/annotated", {"metadata": {"annotations": {"a": "b"}}})
