"""Quota over claims in mode kubernetes: pods and Jobs with claim templates are counted by classes of devices and by what their
devices have, held, let go, and given their devices by the stock scheduler. A node's slices are there as objects."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.dra.published import (
    DRIVER,
    OURS,
    allocated,
    claims,
    claims_of,
    device_class,
    gpu_node,
)
from tests.cluster.dra.queued import claiming, template, usage, why
from tests.cluster.queueing import (
    JOBS,
    apply,
    asked,
    condition,
    door,
    of_kueue,
    workload_of,
)
from tests.kit.node import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
PODS = "/api/v1/namespaces/default/pods"
GIB = 2**30
MEMORY, DEVICES = "sluice.dev/gpu-memory", "sluice.dev/cards"
MAPPINGS = [
    {
        "name": MEMORY,
        "deviceClassNames": ["gpu.sluice.dev"],
        "sources": [
            {"capacity": {"name": "memory", "driver": DRIVER, "deviceSelector": OURS}},
        ],
    },
    {"name": DEVICES, "deviceClassNames": ["card.example.com"]},
]


def configuration(place: Path) -> Path:
    path = place / "kueue.yaml"
    document = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "integrations": {"frameworks": ["batch/job", "pod"]},
        "resources": {"deviceClassMappings": MAPPINGS},
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    place = tmp_path_factory.mktemp("queue")
    with (
        tempfile.TemporaryDirectory(prefix="control-plane-") as directory,
        ControlPlane(Path(directory), controllers=True) as plane,
    ):
        if int(plane.programs.version.split(".")[1]) < 36:
            pytest.skip(f"Kubernetes {plane.programs.version} has no shares of a device by default")
        apply(plane, device_class("gpu.sluice.dev"), device_class("card.example.com"))
        gpu_node(plane, "n1", "80Gi", "80Gi")
        with asked(plane, place, f"kubernetes.kueue_configuration={configuration(place)}"):
            quotas = {"cpu": 100, MEMORY: "60Gi", DEVICES: 1}
            flavor = {
                "name": "plain",
                "resources": [{"name": n, "nominalQuota": q} for n, q in quotas.items()],
            }
            groups = [{"coveredResources": [*quotas], "flavors": [flavor]}]
            apply(
                plane,
                of_kueue("ResourceFlavor", "plain", {}),
                of_kueue(
                    "ClusterQueue",
                    "claims",
                    {"resourceGroups": groups, "namespaceSelector": {}},
                ),
                door("claims", "claims"),
            )
            yield plane


@pytest.fixture(autouse=True)
def over(queue: ControlPlane) -> Iterator[None]:
    yield
    for plural in (JOBS, PODS):
        for one in queue.api.get(plural)["items"]:
            queue.api.delete(f"{plural}/{one['metadata']['name']}", 0)
    until("no claim is left", lambda: not claims(queue), 60)


def test_a_job_with_claims_is_counted_held_let_go_and_given_its_devices(
    queue: ControlPlane,
) -> None:
    apply(queue, template("forty", "40Gi"))
    queue.api.create("jobs", "default", claiming("first", "forty"))
    assert usage(queue, "first")[MEMORY] == 40 * GIB
    (result,) = allocated(queue, "first")
    assert result["consumedCapacity"]["memory"] == "40Gi"
    queue.api.create("jobs", "default", claiming("second", "forty"))
    assert condition(workload_of(queue, "second"), "Admitted").get("status") != "True"
    assert MEMORY in why(queue, "second", MEMORY)["message"]
    assert not claims_of(queue, "second"), "its pods are not there yet"
    queue.api.delete(f"{JOBS}/first", 0)
    assert usage(queue, "second")[MEMORY] == 40 * GIB
    allocated(queue, "second")


def test_a_pod_with_a_claim_is_held_and_let_go(queue: ControlPlane) -> None:
    apply(queue, template("card", None, deviceClassName="card.example.com"))
    pods = []
    for name in ("one", "two"):
        made = claiming(name, "card")["spec"]["template"]
        head = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "claims"}}
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": head, "spec": made["spec"]})
    queue.api.create("pods", "default", pods[0])
    assert usage(queue, "one")[DEVICES] == 1
    allocated(queue, "one")
    queue.api.create("pods", "default", pods[1])
    why(queue, "two", DEVICES)
    assert queue.api.get(f"{PODS}/two")["spec"]["schedulingGates"]
    queue.api.delete(f"{PODS}/one", 0)
    assert usage(queue, "two")[DEVICES] == 1
    allocated(queue, "two")


def test_what_cannot_be_counted_waits_with_the_reason_until_it_can(queue: ControlPlane) -> None:
    queue.api.create("jobs", "default", claiming("early", "later"))
    told = why(queue, "early", "ResourceClaimTemplate 'later' is not in namespace default")
    assert told["status"] == "False"
    apply(queue, template("later", "1Gi"))
    assert usage(queue, "early")[MEMORY] == GIB
    allocated(queue, "early")
    apply(queue, template("large", "90Gi"))
    queue.api.create("jobs", "default", claiming("large", "large"))
    why(queue, "large", "no matching device has enough capacity")
    second = 'device.attributes["sluice.dev"].index == 1'
    apply(queue, template("second", "2Gi", selector=second))
    queue.api.create("jobs", "default", claiming("chosen", "second"))
    assert usage(queue, "chosen")[MEMORY] == 2 * GIB
    (result,) = allocated(queue, "chosen")
    assert result["device"] == "gpu-1"
    apply(queue, template("hostile", "1Gi", selector="device.driver.matches('s.*')"))
    queue.api.create("jobs", "default", claiming("hostile", "hostile"))
    why(queue, "hostile", "function matches of text with 1 arguments is not known")
