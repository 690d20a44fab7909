"""Allocation of a claim, and the grants it needs: by table, with every mistake named."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.core.dra.allocation import EXTENDED, grant_ask, parts_of, read_claim
from nodeagent.core.dra.configuration import apply
from nodeagent.ports.dra.claims import (
    ClaimAllocation,
    ClaimRef,
    ClaimUid,
    NoAllocation,
    ShareConfig,
)
from nodeagent.ports.kubelet import PodIdentity
from nodeagent.units import GpuUuid, PodUid, SharePolicy
from tests.unit.nodeagent.dra.documents import GPU_0, GPU_1, POOL, claim, opaque, result

CLAIM = ClaimRef("default", "c", ClaimUid("u-1"))
GIB = 2**30
UUIDS = {name: GpuUuid("GPU" + name[3:]) for name in (GPU_0, GPU_1)}


def read(*results: dict[str, Any], **more: Any) -> ClaimAllocation:
    return read_claim(claim(*results, **more), CLAIM, POOL)


def ask(allocation: ClaimAllocation, elastic: bool = False, max_priority: int = 0) -> Any:
    (part,) = parts_of(allocation)
    return grant_ask(allocation, part, UUIDS, elastic, max_priority)


def test_a_share_is_what_the_scheduler_consumed_to_the_byte() -> None:
    amounts = {"memory": "25000000001", "cores": "30", "slots": "1"}
    asked = ask(read(result(consumedCapacity=amounts)))
    assert (asked.amounts, asked.share_ppm) == ((25000000001,), 300_000)
    assert (asked.policy, asked.gpu_uuids) == (SharePolicy.HARD, (UUIDS[GPU_0],))


def test_without_cores_it_yields_to_others() -> None:
    asked = ask(read(result(consumedCapacity={"memory": "1Gi", "cores": "0"})))
    assert (asked.policy, asked.share_ppm) == (SharePolicy.ELASTIC, 10_000)


def test_a_device_without_capacity_consumed_is_the_claims_alone() -> None:
    asked = ask(read(result(consumedCapacity=None, shareID=None)))
    assert (asked.policy, asked.amounts) == (SharePolicy.EXCLUSIVE, (None,))


def test_two_shares_of_one_gpu_are_one_larger_one() -> None:
    asked = ask(read(result(), result("more", shareID="0c")))
    assert asked.amounts == (48 * GIB,)


def test_shares_of_two_gpus_may_differ_in_memory() -> None:
    other = result("b", GPU_1, consumedCapacity={"memory": "8Gi", "cores": "30"})
    asked = ask(read(result(), other))
    assert asked.amounts == (24 * GIB, 8 * GIB)
    assert asked.gpus == 2


def test_a_claim_of_a_pod_is_that_pods() -> None:
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}]
    assert read(result(), ownerReferences=owner).pod == PodIdentity(PodUid("pod-1"), "default", "p")


@pytest.mark.parametrize(
    "owner",
    [
        [],
        [{"apiVersion": "v1", "kind": "Pod", "name": "q", "uid": "pod-2", "controller": True}],
        [{"apiVersion": "apps/v1", "kind": "Pod", "name": "p", "uid": "pod-1", "controller": True}],
        [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-1"}],
    ],
    ids=["nobody", "a pod it is not reserved for", "another kind", "no controller"],
)
def test_any_other_claim_may_be_several_pods(owner: list[Any]) -> None:
    assert read(result(), ownerReferences=owner).pod is None


def test_containers_that_ask_for_the_resource_have_a_grant_each() -> None:
    names = ("container-0-request-0", "container-1-request-0", "container-1-request-1")
    results = [
        result(name, device) for name, device in zip(names, (GPU_0, GPU_1, GPU_0), strict=True)
    ]
    found = read(*results, annotations={EXTENDED: "true"})
    assert parts_of(found) == ((0,), (1, 2))


def test_devices_of_other_drivers_are_not_ours() -> None:
    assert len(read(result(), result("nic", driver="net.example")).shares) == 1


def test_an_alternative_is_told_to_the_kubelet_by_its_lists_name() -> None:
    assert read(result("gpu/large")).shares[0].request == "gpu"


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([result(driver="other")], "no device of sluice.dev is allocated"),
        ([result(pool="node-2")], "this node's is node-1"),
        ([result(adminAccess=True)], "adminAccess"),
        ([result(consumedCapacity={"memory": "1Gi"})], "must have both memory and cores"),
        ([result(consumedCapacity={"memory": "x", "cores": "1"})], "got 'x'"),
        ([result(consumedCapacity={"memory": "1Gi", "cores": "101"})], "101 cores"),
        ([result(consumedCapacity={"memory": "500m", "cores": "1"})], "expected a whole number"),
        ([result(device=7)], "not a ResourceClaim"),
        ([result("r" * 300)], "not a ResourceClaim"),
        ([result()] * 40, "too many"),
    ],
)
def test_what_cannot_be_is_refused_by_name(results: list[Any], said: str) -> None:
    with pytest.raises(NoAllocation, match=said):
        read(*results)


@pytest.mark.parametrize(
    ("results", "config", "said"),
    [
        ([result(device="gpu-gone")], [], "device gpu-gone does not exist"),
        ([result(), result("b", GPU_1, consumedCapacity={"memory": "1Gi", "cores": "60"})], [], "different cores"),
        ([result(), result("b", GPU_1)], [opaque(["b"], priority=3)], "different configurations"),
        ([result()], [opaque(policy="exclusive")], 'mode = "exclusive"'),
        ([result()], [opaque(ceilingPercent=50)], "needs policy elastic"),
        ([result()], [opaque(ceilingPercent=20, policy="elastic")], "below the 30 cores"),
        ([result(consumedCapacity={"memory": "1Gi", "cores": "0"})], [opaque(policy="hard")], "needs cores"),
    ],
)  # fmt: skip
def test_what_no_grant_can_be_is_refused_by_name(
    results: list[Any], config: list[Any], said: str
) -> None:
    with pytest.raises(NoAllocation, match=said):
        ask(read(*results, config=config))


# --- configuration --------------------------------------------------------------------------------


def test_the_class_goes_over_the_claim_field_by_field() -> None:
    config = [
        opaque(policy="elastic", priority=5),
        opaque(source="FromClass", priority=1, ceilingPercent=70),
        opaque(["other"], priority=9),
    ]
    assert read(result(), config=config).shares[0].config == ShareConfig(
        SharePolicy.ELASTIC, 1, False, 70, class_priority=True
    )


@pytest.mark.parametrize(
    ("config", "most", "gets"),
    [
        ([opaque(priority=1000)], 0, None),
        ([opaque(priority=1)], 0, None),
        ([opaque(priority=10)], 10, 10),
        ([opaque(priority=11)], 10, None),
        ([opaque(priority=-7)], 0, -7),
        ([opaque(priority=-7)], -10, -10),
        ([], -10, -10),
        ([opaque(source="FromClass", priority=50)], 0, 50),
        ([opaque(source="FromClass", priority=-10), opaque(priority=1000)], 0, -10),
        ([opaque(source="FromClass", policy="elastic"), opaque(priority=1000)], 0, None),
    ],
)
def test_a_claim_does_not_put_itself_in_front(
    config: list[dict[str, Any]], most: int, gets: int | None
) -> None:
    """With priority 1000 a claim left a hard neighbour of 70 % with 4 % of the time."""
    allocation = read(result(), config=config)
    if gets is None:
        with pytest.raises(NoAllocation, match=r"kubelet\.max_priority"):
            ask(allocation, max_priority=most)
    else:
        assert ask(allocation, max_priority=most).priority == gets


def test_what_others_configure_is_not_read() -> None:
    other = {"opaque": {"driver": "net.example", "parameters": {"mtu": 9000}}}
    assert read(result(), config=[other]).shares[0].config == ShareConfig()


def test_it_is_in_the_grant() -> None:
    config = [opaque(policy="elastic", priority=7, ceilingPercent=60, gang=True)]
    asked = ask(read(result(), config=config), max_priority=7)
    assert asked.gang
    assert not ask(read(result())).gang
    assert (asked.policy, asked.priority, asked.ceiling_ppm) == (SharePolicy.ELASTIC, 7, 600_000)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"polcy": "hard"}, r"p\.polcy: unknown field.*policy"),
        ({"policy": "soft"}, r"p\.policy: must be hard, elastic or exclusive, got 'soft'"),
        ({"priority": 1001}, r"p\.priority: must be a whole number from -1000 to 1000, got '1001'"),
        ({"priority": True}, r"p\.priority"),
        ({"paused": "yes"}, r"p\.paused: must be true or false, got 'yes'"),
        ({"gang": 1}, r"p\.gang: must be true or false, got '1'"),
        ({"ceilingPercent": 1.5}, r"p\.ceilingPercent"),
        ({"kind": "GpuConfig"}, r"p\.kind: must be ShareConfig, got 'GpuConfig'"),
        ({"apiVersion": "sluice.dev/v2"}, r"p\.apiVersion: 'sluice.dev/v2': this release supports"),
    ],
)
def test_a_mistake_is_told_with_its_field(parameters: dict[str, Any], said: str) -> None:
    given = {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", **parameters}
    with pytest.raises(NoAllocation, match=said):
        apply(ShareConfig(), given, "p")


def test_all_mistakes_are_told_at_once() -> None:
    given = {"apiVersion": "sluice.dev/v1", "kind": "ShareConfig", "pausd": 1, "priority": "x"}
    with pytest.raises(NoAllocation, match=r"pausd.*paused.*priority"):
        apply(ShareConfig(), given, "p")
