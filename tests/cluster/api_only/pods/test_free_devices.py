"""Quota in mode kubernetes is reserved where nodes have free devices, beside the stock scheduler, which allocates them, and
the stock controllers, which make claims and end them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.api import ApiError
from tests.cluster.control_plane import ControlPlane
from tests.cluster.dra.counting import PODS, clear, counting, scheduled
from tests.cluster.dra.published import DRIVER, allocated, claims_of, slice_of
from tests.cluster.dra.queued import claimed, claiming, template, usage, why
from tests.cluster.queueing import (
    JOBS,
    apply,
    condition,
    is_true,
    workload_of,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]
CARDS = "sluice.dev/cards"
CLASS = "whole.example.com"


def whole_cards(node: str, count: int) -> dict[str, Any]:
    """Cards that one claim has at a time."""
    made = slice_of(node, *["80Gi"] * count)
    for one in made["spec"]["devices"]:
        del one["allowMultipleAllocations"], one["capacity"]
    return made


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with scheduled(34, "resource.k8s.io/v1") as plane:
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}
        apply(plane, {**kind, "metadata": {"name": CLASS}, "spec": {"selectors": [selector]}})
        for name in ("n1", "n2"):
            apply(plane, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            amounts = {"cpu": "16", "memory": "64Gi", "pods": "110"}
            ready = [{"type": "Ready", "status": "True", "reason": "r"}]
            status = {"allocatable": amounts, "capacity": amounts, "conditions": ready}
            plane.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
        apply(plane, whole_cards("n1", 2), whole_cards("n2", 1))
        with counting(
            plane,
            tmp_path_factory.mktemp("queue"),
            [{"name": CARDS, "deviceClassNames": [CLASS]}],
            {"cpu": 100, CARDS: 100},
            {"KueueDRADeviceFeasibility": True},
            preemption={"withinClusterQueue": "LowerPriority"},
        ):
            apply(
                plane,
                {
                    "apiVersion": "kueue.x-k8s.io/v1beta2",
                    "kind": "WorkloadPriorityClass",
                    "metadata": {"name": "high"},
                    "value": 100,
                },
                template("one", None, deviceClassName=CLASS),
                template("two", None, deviceClassName=CLASS, count=2),
            )
            yield plane


@pytest.fixture(autouse=True)
def kubelets(queue: ControlPlane) -> Iterator[None]:
    """The pods that are deleted are gone a moment later, as with kubelets."""
    done = threading.Event()

    def play() -> None:
        while not done.wait(0.1):
            with contextlib.suppress(ApiError, OSError):
                for one in queue.api.get(PODS)["items"]:
                    if one["metadata"].get("deletionTimestamp"):
                        queue.api.delete(f"{PODS}/{one['metadata']['name']}", 0)

    thread = threading.Thread(target=play)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.fixture(autouse=True)
def over(queue: ControlPlane) -> Iterator[None]:
    yield
    clear(queue)


def test_quota_waits_for_the_devices_of_pods_that_are_not_queued(queue: ControlPlane) -> None:
    spec = claiming("x", "two")["spec"]["template"]["spec"]
    claimed(spec, "two")
    queue.api.create(
        "pods",
        "default",
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": spec},
    )
    allocated(queue, "plain")
    queue.api.create("jobs", "default", claiming("pair", "two"))
    found = why(queue, "pair", "free devices")
    assert found["reason"] == "WaitingForPlacement"
    assert not claims_of(queue, "pair")
    queue.api.delete(f"{PODS}/plain", 0)
    assert usage(queue, "pair")[CARDS] == 2
    assert len(allocated(queue, "pair")) == 2


def test_as_many_are_admitted_as_devices_are_free_and_the_next_when_one_ends(
    queue: ControlPlane,
) -> None:
    for name in ("a", "b", "c"):
        queue.api.create("jobs", "default", claiming(name, "one"))
    for name in ("a", "b", "c"):
        assert usage(queue, name)[CARDS] == 1
        allocated(queue, name)
    queue.api.create("jobs", "default", claiming("d", "one"))
    why(queue, "d", "free devices")
    queue.api.delete(f"{JOBS}/b", 0)
    assert usage(queue, "d")[CARDS] == 1
    allocated(queue, "d")


def test_a_job_of_higher_priority_preempts_one_that_has_a_device(queue: ControlPlane) -> None:
    for name in ("e", "f", "g"):
        queue.api.create("jobs", "default", claiming(name, "one"))
    for name in ("e", "f", "g"):
        allocated(queue, name)
    made = claiming("important", "one")
    made["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = "high"
    queue.api.create("jobs", "default", made)
    assert usage(queue, "important")[CARDS] == 1
    allocated(queue, "important")
    held = [name for name in ("e", "f", "g") if is_true(workload_of(queue, name), "QuotaReserved")]
    assert len(held) == 2, "one victim is enough"
    (victim,) = {"e", "f", "g"}.difference(held)
    assert condition(workload_of(queue, victim), "Preempted")["status"] == "True"
