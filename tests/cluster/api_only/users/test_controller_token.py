"""Rights of the queue controller's token at a real API server: those of the chart, within its admission policies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from queuecontroller.cluster.autoscaling import objects
from queuecontroller.cluster.autoscaling.objects import Owner
from queuecontroller.cluster.autoscaling.scale_down import KEPT, changes
from queuecontroller.cluster.autoscaling.templates import Template
from queuecontroller.cluster.setup.job_webhooks import CONFIGURATION, Missed, mutating
from queuecontroller.cluster.setup.registration import VISIBILITY
from queuecontroller.cluster.status.visibility import services
from queuecontroller.kueueapi.crds import Webhook, validation
from queuecontroller.scheduler.model.selectors import Taint
from queuecontroller.scheduler.placement.capacity import NodeCapacity
from queuecontroller.scheduler.placement.new_nodes import NodeTemplate
from sluicecommon.hami.names import ResourceNames
from tests.cluster.api import Api, ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.programs.release import NAMESPACE, Release
from tests.cluster.queueing import DEADLINE_S, apply, is_served, job
from tests.kit.node import until
from tests.kit.workplace import HOST

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
VALUES = (
    *("queue.mode=kubernetes", "agent.enabled=false", "cleanup.enabled=false"),
    *("queue.nodeRequests=pods", "queue.nodeTemplatesMap=node-templates"),
)
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:s-queue"
WEBHOOK = Webhook(namespace=NAMESPACE, word="word")
OURS = {"kueue.x-k8s.io/queue-name": "main"}


def pod(name: str, namespace: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "honest"}], "nodeName": "n1"},
    }


def serving(kind: str, name: str, owner: str = "", **labels: str) -> dict[str, Any]:
    """A Deployment, StatefulSet or ReplicaSet whose pods name no queue."""
    head: dict[str, Any] = {"name": name, "namespace": "default", "labels": labels}
    if owner:
        made_by = {"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": "u-x"}
        head["ownerReferences"] = [{**made_by, "controller": True}]
    spec = {**pod(name, "default")["spec"], "nodeName": ""}
    template = {"metadata": {"labels": {"app": name}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": head,
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "template": template,
            **({"serviceName": name} if kind == "StatefulSet" else {}),
        },
    }


def placeholder(name: str, **spec: Any) -> dict[str, Any]:
    """A pod as the controller creates it for a new node."""
    capacity = NodeCapacity((), {"group": "a"}, (Taint("gpu", "x", "NoSchedule"),))
    template = Template(NodeTemplate("large", capacity), {"nvidia.com/gpu": "8"})
    made = objects.placeholder(template, name, Owner("sluice-queue", "uid", NAMESPACE))
    return {**made, "spec": {**made["spec"], **spec}}


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("token")
    with ControlPlane(place / "plane") as made:
        Release(made, place, *VALUES).install()
        until("Kueue's kinds are served", lambda: is_served(made), DEADLINE_S)
        apply(
            made,
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
            *(
                pod(name, space, **labels)
                for space in ("default", "kube-system")
                for name, labels in (("plain", {}), ("queued", OURS))
            ),
            placeholder("stored"),
            *(
                serving(kind, name, **labels)
                for kind in ("Deployment", "StatefulSet")
                for name, labels in (("plain", {}), ("queued", OURS))
            ),
            serving("ReplicaSet", "alone"),
            serving("ReplicaSet", "former", "Deployment"),
            {**job("plain", "", suspend=True), "metadata": {"name": "plain", "namespace": "kube-system"}},
        )  # fmt: skip
        until("the policies are in force", lambda: bool(refused(made, *LABELLED_NODE)), 60)
        yield made


def tried(plane: ControlPlane, method: str, path: str, body: Any = None) -> str:
    """Why the API server refuses a request by the controller's account; empty if it does not."""
    api = Api(HOST, plane.ports["kube-apiserver"], plane.pki)
    api.user = ACCOUNT
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    try:
        api.call(method, f"{path}?dryRun=All", body, kind)
    except ApiError as error:
        return str(error)
    return ""


def refused(plane: ControlPlane, path: str, patch: Any) -> str:
    return tried(plane, "PATCH", path, patch)


NODE = "/api/v1/nodes/n1"
POD = "/api/v1/namespaces/default/pods/plain"
SYSTEM = "/api/v1/namespaces/kube-system/pods"
OWN = f"/api/v1/namespaces/{NAMESPACE}/pods"
SYSTEM_JOB = "/apis/batch/v1/namespaces/kube-system/jobs/plain"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
JOBS = f"{HOOKS}/mutatingwebhookconfigurations/{CONFIGURATION}"
OBJECTS = f"{HOOKS}/validatingwebhookconfigurations/sluice-kueue-api"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.kueue.x-k8s.io"
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"
API_SERVICE = f"{API_SERVICES}/v1beta2.visibility.kueue.x-k8s.io"
LABELLED_NODE = (NODE, {"metadata": {"labels": {"x": "y"}}})
SHARES = Missed(shares=ResourceNames().parts)
HONEST = mutating(WEBHOOK.client, NAMESPACE, ACCOUNT, SHARES)["webhooks"]
STRANGE = {"clientConfig": {"url": "https://strange.example/x"}}


def webhooks(**changed: Any) -> dict[str, Any]:
    return {"webhooks": [{**HONEST[0], **changed}]}


def everything(group: str, resource: str) -> dict[str, Any]:
    rule = {"apiGroups": [group], "apiVersions": ["*"], "operations": ["*"], "resources": [resource]}  # fmt: skip
    return webhooks(rules=[rule])


def elsewhere(**service: Any) -> dict[str, Any]:
    made = {"name": "sluice-queue-webhooks", "namespace": NAMESPACE, "path": "/x", **service}
    return {"clientConfig": {"service": made}}


HANDED_ON = {"spec": {"conversion": {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {**STRANGE["clientConfig"], "service": None}}}}}  # fmt: skip
PHASE = {"status": {"phase": "Failed"}}
IMAGE = {"spec": {"containers": [{"name": "main", "image": "strange"}]}}
APPS = "/apis/apps/v1/namespaces/default"
QUEUED_PODS = {"spec": {"template": {"metadata": {"labels": OURS, "annotations": {"x": "y"}}}}}


@pytest.mark.parametrize(
    ("path", "patch", "why"),
    [
        (*LABELLED_NODE, "nothing of a node but annotations"),
        (NODE, {"spec": {"unschedulable": True}}, "nothing of a node but annotations"),
        (NODE, {"metadata": {"finalizers": ["a.b/c"]}}, "nothing of a node"),
        (NODE, {"metadata": {"annotations": {"x": "y"}}}, "HAMi's annotations"),
        (JOBS, everything("", "secrets"), "for pods, jobs and Kueue's objects"),
        (JOBS, everything("*", "*"), "for pods, jobs and Kueue's objects"),
        (JOBS, everything("", "pods/*"), "for pods, jobs and Kueue's objects"),
        (JOBS, webhooks(**STRANGE), "its own Service"),
        (JOBS, webhooks(**elsewhere(name="strange")), "its own Service"),
        (JOBS, webhooks(**elsewhere(namespace="default")), "its own Service"),
        (JOBS, webhooks(failurePolicy="Fail"), "failurePolicy Ignore"),
        (JOBS, webhooks(failurePolicy="Fail", matchConditions=HONEST[-1]["matchConditions"][1:]), "failurePolicy Ignore"),
        (CRD, HANDED_ON, "own Service"),
        (CRD, {"spec": {"names": {"shortNames": ["x"]}}}, "nothing of a definition"),
        (API_SERVICE, {"spec": {"service": {"name": "strange"}}}, "own Service"),
        (API_SERVICE, {"spec": {"insecureSkipTLSVerify": True, "caBundle": None}}, "own Service"),
        (POD, IMAGE, "no image of a pod"),
        (f"{POD}/status", PHASE, "no phase"),
        (f"{SYSTEM}/plain", {"metadata": {"labels": OURS}}, "in no queue"),
        (f"{SYSTEM}/plain", {"metadata": {"finalizers": ["a.b/c"]}}, "in no queue"),
        (SYSTEM_JOB, {"spec": {"suspend": False}}, "in no queue"),
        (f"{APPS}/deployments/plain", QUEUED_PODS, "that is in no queue"),
        (f"{APPS}/statefulsets/plain", QUEUED_PODS, "that is in no queue"),
        (f"{APPS}/deployments/queued", {"spec": {"template": IMAGE}}, "but labels and annotations"),
        (f"{APPS}/statefulsets/queued", {"spec": {"replicas": 0}}, "but labels and annotations"),
    ],
)  # fmt: skip
def test_what_the_token_may_not_change(
    plane: ControlPlane, path: str, patch: Any, why: str
) -> None:
    assert why in refused(plane, path, patch)


def test_what_the_controller_writes_is_not_refused(plane: ControlPlane) -> None:
    (hook,) = validation(WEBHOOK, ACCOUNT)["webhooks"]
    converted = {"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": WEBHOOK.client("/convert")}}  # fmt: skip
    served = {one["metadata"]["name"]: one["spec"] for one in services("", VISIBILITY, NAMESPACE)}  # fmt: skip
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "x", "message": "x"}
    for path, patch in (
        (JOBS, {"webhooks": HONEST}),
        (OBJECTS, {"webhooks": [hook]}),
        (CRD, {"spec": {"conversion": converted}}),
        (API_SERVICE, {"spec": served[API_SERVICE.rpartition("/")[2]]}),
        (NODE, {"metadata": {"annotations": {"hami.io/node-handshake": "Reported"}}}),
        (NODE, {"metadata": {"annotations": changes({}, KEPT)}}),
        (f"{OWN}/stored/status", {"status": {"conditions": [objects.UNSCHEDULABLE]}}),
        (NODE, {"metadata": {"annotations": {"vendor.example/handshake-x": "Requesting"}}}),
        (POD, {"metadata": {"annotations": {"sluice.dev/tried": "x"}, "labels": OURS}}),
        (f"{POD}/status", {"status": {"conditions": [condition]}}),
        (f"{SYSTEM}/plain", {"metadata": {"annotations": {"sluice.dev/tried": "x"}}}),
        (f"{SYSTEM}/queued", {"metadata": {"finalizers": ["kueue.x-k8s.io/managed"]}}),
        (f"{APPS}/deployments/queued", QUEUED_PODS),
        (f"{APPS}/statefulsets/queued", QUEUED_PODS),
    ):
        assert refused(plane, path, patch) == "", (path, patch)


def test_what_the_token_may_not_delete_or_create(plane: ControlPlane) -> None:
    assert "in no queue" in tried(plane, "DELETE", f"{SYSTEM}/plain")
    assert "in no queue" in tried(plane, "DELETE", SYSTEM_JOB)
    assert tried(plane, "DELETE", f"{SYSTEM}/queued") == ""
    assert "no ReplicaSet but" in tried(plane, "DELETE", f"{APPS}/replicasets/alone")
    assert tried(plane, "DELETE", f"{APPS}/replicasets/former") == ""
    assert "cannot delete" in tried(plane, "DELETE", f"{APPS}/deployments/queued")
    strange = {"metadata": {"name": "v1.strange.example"}}
    for path, document in (
        (JOBS, mutating(WEBHOOK.client, NAMESPACE)),
        (OBJECTS, validation(WEBHOOK)),
    ):
        found = tried(plane, "POST", path.rpartition("/")[0], {**document, **strange})
        assert "cannot create" in found
        assert "cannot delete" in tried(plane, "DELETE", f"{path}-of-another")
        # Its own are removed with its namespace, so that nothing waits for who is gone.
        assert tried(plane, "DELETE", path) == ""
    assert tried(plane, "DELETE", API_SERVICE) == ""
    assert "cannot delete" in tried(plane, "DELETE", f"{API_SERVICES}/v1.apps")
    another = {**services("", VISIBILITY, NAMESPACE)[0], **strange}
    another["spec"] = {**another["spec"], "group": "strange.example", "version": "v1"}
    assert "own Service" in tried(plane, "POST", API_SERVICES, another)


def test_the_token_creates_no_pods_but_placeholders_of_new_nodes(plane: ControlPlane) -> None:
    assert tried(plane, "POST", OWN, placeholder("one")) == ""
    assert tried(plane, "DELETE", f"{OWN}/stored") == ""
    [container] = placeholder("one")["spec"]["containers"]
    for changed in (
        {"schedulerName": "default-scheduler"},
        {"nodeName": "n1"},
        {"serviceAccountName": "s-queue"},
        {"automountServiceAccountToken": True},
        {"hostNetwork": True},
        {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]},
        {"containers": [{**container, "image": "strange"}]},
        {"containers": [{**container, "command": ["sh"]}]},
        {"initContainers": [container | {"name": "first"}]},
    ):
        assert "no pods but placeholders" in tried(
            plane, "POST", OWN, placeholder("two", **changed)
        ), changed
    elsewhere = placeholder("one")
    elsewhere["metadata"]["namespace"] = "default"
    assert "cannot create" in tried(plane, "POST", "/api/v1/namespaces/default/pods", elsewhere)
