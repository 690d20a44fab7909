"""Writes of the provisioning check, in order."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any, cast

import pytest

from queuecontroller.cluster.admissionchecks.provisioner import CONFIGS, Provisioner
from queuecontroller.cluster.admissionchecks.requests import REQUESTS
from queuecontroller.cluster.cache.kinds import CHECKS, WORKLOADS
from queuecontroller.cluster.cache.mirror import Mirror
from queuecontroller.cluster.cache.objects import Document, ObjectCache
from queuecontroller.cluster.status.events import KubernetesEvent
from queuecontroller.cluster.writers.event_recorder import EventRecorder
from queuecontroller.state.shell import Shell
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.errors import ApiRefused
from sluicecommon.kubernetes.resources import Resource
from tests.queue.cluster.admissionchecks.workloads import pod_set, workload


class Server:
    """Stores what is created; names are unique."""

    def __init__(self) -> None:
        self.created: list[tuple[str, str]] = []

    async def create(self, kind: Resource, made: Any, namespace: str) -> dict[str, Any]:
        one = kind.kind, str(made["metadata"]["name"])
        assert one not in self.created, "it exists already"
        self.created.append(one)
        stored = deepcopy(dict(made))
        stored["metadata"] |= {"uid": f"u-{one[1]}", "resourceVersion": "1"}
        return stored

    async def get(self, kind: Resource, name: str, namespace: str) -> dict[str, Any]:
        assert (kind.kind, name) in self.created
        head = {"name": name, "namespace": namespace, "uid": f"u-{name}", "resourceVersion": "1"}
        return {"metadata": head}

    async def merge_patch(self, kind: Resource, name: str, patch: Any, *_: Any, **__: Any) -> Any:
        return {**await self.get(kind, name, "n"), **patch}


class Recorder:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record(self, about: Document, kind: Resource, event: KubernetesEvent) -> None:
        self.reasons.append(event.reason)


class Around:
    def __init__(self, cache: ObjectCache) -> None:
        self.cache = cache

    def now_ns(self) -> int:
        return 1


def test_a_request_is_created_once_and_after_all_its_templates() -> None:
    cache, server, recorder = ObjectCache(), Server(), Recorder()
    around = Around(cache)
    controller = "kueue.x-k8s.io/provisioning-request"
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": CONFIGS.kind, "name": "large"}
    head = {"uid": "u", "resourceVersion": "1"}
    check = {
        "metadata": {"name": "nodes", **head},
        "spec": {"controllerName": controller, "parameters": parameters},
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }
    config = {"metadata": {"name": "large", **head}, "spec": {"provisioningClassName": "best"}}
    waiting = workload("Pending", pod_set("a"), pod_set("b"), pod_set("c"))
    waiting["metadata"]["resourceVersion"] = "1"
    for kind, one in ((CHECKS, check), (CONFIGS, config), (WORKLOADS, waiting)):
        cache.take(kind, one)
    provisioner = Provisioner(
        cast(Shell, around),
        cast(Mirror, around),
        cast(ApiClient, server),
        lambda: True,
        cast(EventRecorder, recorder),
        lambda kind: kind == REQUESTS,
        lambda before, after: None,
    )

    async def work() -> None:
        provisioner.workload_changed("n/w", waiting)
        running = asyncio.create_task(provisioner.work_queue.run())
        while len(provisioner.work_queue):
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(work())
    assert server.created == [
        *(("PodTemplate", f"ppt-w-nodes-1-{one}") for one in "abc"),
        ("ProvisioningRequest", "w-nodes-1"),
    ]
    assert recorder.reasons == ["ProvisioningRequestCreated"]


class Foreign:
    """Has a PodTemplate already, which a user created with the name that the check's will have."""

    def __init__(self, template: dict[str, Any]) -> None:
        self.template: dict[str, Any] | None = template

    async def create(self, kind: Resource, made: Any, namespace: str) -> None:
        if self.template is not None:
            raise ApiRefused(409, "AlreadyExists", "exists")
        self.template = made["template"]

    async def get(self, kind: Resource, name: str, namespace: str) -> Any:
        return {"metadata": {"name": name, "uid": "u-user"}, "template": self.template}

    async def delete(self, kind: Resource, name: str, namespace: str, uid: str) -> None:
        assert uid == "u-user"
        self.template = None


@pytest.mark.parametrize(("cpu", "stays"), [("1m", False), ("2", True)])
def test_a_template_of_a_user_that_requests_less_is_replaced(cpu: str, stays: bool) -> None:
    """Otherwise the autoscaler would make nodes for less than the pods request."""

    def template(amount: str) -> dict[str, Any]:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": amount}}}
        return {"spec": {"containers": [container]}}

    server = Foreign(template(cpu))
    provisioner = object.__new__(Provisioner)
    provisioner._client = cast(ApiClient, server)
    made = {"metadata": {"name": "ppt-w-nodes-1-a"}, "template": template("2")}
    if not stays:
        with pytest.raises(ApiRefused):
            asyncio.run(provisioner._create_template(made, "n"))
        assert server.template is None, "it is made again at the next attempt"
    asyncio.run(provisioner._create_template(made, "n"))
    assert server.template == template("2")
