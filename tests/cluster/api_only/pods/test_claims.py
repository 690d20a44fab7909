"""Quota over claims in mode kubernetes: pods and Jobs with claim templates are counted by classes of devices and by what their
devices have, held, let go, and given their devices by the stock scheduler. A node's slices are there as objects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.control_plane import ControlPlane
from tests.cluster.dra.counting import PODS, clear, counting, scheduled
from tests.cluster.dra.published import (
    DRIVER,
    OURS,
    allocated,
    claims_of,
    device_class,
    gpu_node,
)
from tests.cluster.dra.queued import claiming, template, usage, why
from tests.cluster.queueing import (
    JOBS,
    apply,
    condition,
    workload_of,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
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


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with scheduled(36, "shares of a device by default") as plane:
        apply(plane, device_class("gpu.sluice.dev"), device_class("card.example.com"))
        gpu_node(plane, "n1", "80Gi", "80Gi")
        quotas = {"cpu": 100, MEMORY: "60Gi", DEVICES: 1}
        with counting(plane, tmp_path_factory.mktemp("queue"), MAPPINGS, quotas):
            yield plane


@pytest.fixture(autouse=True)
def over(queue: ControlPlane) -> Iterator[None]:
    yield
    clear(queue)


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
