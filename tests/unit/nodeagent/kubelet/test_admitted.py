"""Queued pods start only once their Workload is admitted, where Kueue's objects are the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, cast

import pytest

from nodeagent.adapters.kubelet.admissions import ApiAdmissions
from nodeagent.assembly.kubelet import limit_sources
from nodeagent.core.kubelet.admitted import JOB_UID, QUEUE_LABEL, WORKLOAD
from nodeagent.ports.dra.claims import ClaimAllocation, ClaimRef, ClaimUid, NotPrepared
from nodeagent.ports.kubelet import (
    ContainerLimits,
    ContainerRequests,
    KubeletAway,
    NoPodSource,
    Owner,
    OwnerRef,
    PodIdentity,
    RequestsUnknown,
    RetryLater,
)
from nodeagent.settings.kubelet import KubeletConfig
from nodeagent.shell.pods.admitted import AdmittedPods
from nodeagent.shell.pods.dra.manager import ClaimManager, ClaimSettings
from nodeagent.units import PodUid
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access, Credentials
from tests.kit.apiserver import ApiServer

POD = PodIdentity(PodUid("u-p"), "team", "p")
JOB = OwnerRef("batch/v1", "Job", "j", "u-j")
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"


class Pods:
    def __init__(self, *owners: Owner, unknown: str = "") -> None:
        self.found = owners
        self.unknown = unknown

    async def requests(self, pod: PodIdentity, container: str) -> ContainerRequests:
        raise AssertionError

    async def owners(self, namespace: str, first: OwnerRef | None) -> tuple[Owner, ...]:
        if self.unknown:
            raise NoPodSource(self.unknown)
        return self.found


class Admissions:
    def __init__(self, why: str = "") -> None:
        self.why = why
        self.asked: list[tuple[str, str, set[str], bool]] = []

    async def why_not(
        self, namespace: str, name: str, uids: Collection[str], all_known: bool
    ) -> str:
        self.asked.append((namespace, name, set(uids), all_known))
        return self.why


def requests(
    labels: tuple[tuple[str, str], ...] = (),
    annotations: tuple[tuple[str, str], ...] = (),
    owner: OwnerRef | None = None,
) -> ContainerRequests:
    return ContainerRequests(POD, (("nvidia.com/gpu", "1"),), labels, annotations, owner)


def started(
    asked: ContainerRequests | RequestsUnknown, pods: Pods, admissions: Admissions | None
) -> ContainerLimits | None:
    source = AdmittedPods(pods, admissions)
    return asyncio.run(source.limits(POD, "main", asked, 1))


def test_a_pod_that_names_a_queue_waits_for_its_workload() -> None:
    none, admitted = Admissions("no Workload of it is admitted"), Admissions()
    asked = requests(((QUEUE_LABEL, "lq"),), ((WORKLOAD, "w"),))
    with pytest.raises(RetryLater, match="waits in queue lq: no Workload of it is admitted"):
        started(asked, Pods(), none)
    assert started(asked, Pods(), admitted) is None, "the next source decides"
    assert admitted.asked == [("team", "w", {"u-p"}, True)]


def test_so_does_one_whose_owner_names_a_queue() -> None:
    owners = Owner(JOB), Owner(OwnerRef("jobset/v1", "JobSet", "s", "u-s"), ((QUEUE_LABEL, "lq"),))
    admissions = Admissions("pending")
    with pytest.raises(RetryLater, match="queue lq: pending"):
        started(requests(owner=JOB), Pods(*owners), admissions)
    assert admissions.asked == [("team", "", {"u-p", "u-j", "u-s"}, True)]


def test_a_pod_of_no_queue_is_not_looked_up() -> None:
    admissions = Admissions("never asked")
    assert started(requests(owner=JOB), Pods(Owner(JOB)), admissions) is None
    assert started(requests(owner=JOB), Pods(unknown="permission denied"), admissions) is None
    assert admissions.asked == []


def test_an_owner_that_may_not_be_read_still_counts_by_its_uid() -> None:
    admissions = Admissions()
    asked = requests(((QUEUE_LABEL, "lq"),), owner=JOB)
    assert started(asked, Pods(unknown="permission denied"), admissions) is None
    assert admissions.asked == [("team", "", {"u-p", "u-j"}, False)]


def test_unknown_pods_and_nodes_without_access_wait() -> None:
    with pytest.raises(RetryLater, match="is unknown: no source"):
        started(RequestsUnknown("no source"), Pods(), Admissions())
    with pytest.raises(RetryLater, match="no access to the API server"):
        started(requests(((QUEUE_LABEL, "lq"),)), Pods(), None)
    config = KubeletConfig(limits=("admission", "pod"))
    assert isinstance(limit_sources(config, None, Pods())[0], AdmittedPods), "not left out"


def workload(
    name: str, admitted: bool, owner: str = "u-j", job: str = "u-j", why: str = "insufficient"
) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "namespace": "team", "uid": f"u-{name}"}
    head["labels"] = {JOB_UID: job} if job else {}
    head["ownerReferences"] = [{"uid": owner}] if owner else []
    conditions = [
        {"type": "QuotaReserved", "status": str(admitted), "message": why},
        {"type": "Admitted", "status": str(admitted)},
    ]
    return {"metadata": head, "status": {"conditions": conditions}}


def judged(name: str, *there: dict[str, Any], uids: Collection[str] = ("u-p", "u-j"), known: bool = True, refuse: tuple[int, str] | None = None) -> str:  # fmt: skip
    async def run() -> str:
        api = ApiServer()
        await api.start()
        client = ApiClient(Credentials(Access(api.url)), "test", deadline_s=5)
        try:
            for one in there:
                api.put(WORKLOADS, one)
            api.refuse = lambda method, path: refuse
            return await ApiAdmissions(client).why_not("team", name, uids, known)
        finally:
            await client.close()
            await api.close()

    return asyncio.run(run())


def test_the_workload_that_the_pod_names_has_to_be_admitted_and_its_own() -> None:
    assert judged("w", workload("w", True)) == ""
    assert judged("w", workload("w", True, owner="")) == "", "prebuilt"
    assert judged("w", workload("w", False)) == "insufficient"
    other = workload("w", True, owner="u-other", job="u-other")
    assert judged("w", other) == "Workload w is another job's"
    assert judged("w", other, known=False) == "", "its owners cannot all be read"


def test_without_a_name_its_owners_workload_counts() -> None:
    assert judged("", workload("w", True)) == ""
    assert judged("", workload("w", False)) == "insufficient"
    assert "no Workload of it is admitted" in judged("")
    other = workload("w", True, owner="u-other", job="u-other")
    assert "no Workload of it is admitted" in judged("", other)
    assert judged("first", workload("first", False), workload("second", True)) == "", "a slice"


def test_without_an_answer_nothing_is_known() -> None:
    with pytest.raises(KubeletAway, match="cannot be read"):
        judged("w", workload("w", True), refuse=(403, "Forbidden"))


def test_a_claim_of_a_pod_that_waits_in_a_queue_is_not_prepared() -> None:
    claim = ClaimRef("team", "c", ClaimUid("u-c"))
    asked: list[str] = []

    class Nothing:
        keeper = cdi = None

        def capacities(self) -> list[Any]:
            return []

        def of(self, allocation: ClaimAllocation) -> dict[str, Any]:
            return {}

        async def cut(self, *_: Any) -> dict[str, Any]:
            return {}

        def monotonic_ns(self) -> int:
            return 0

    class Source:
        def __init__(self, pod: PodIdentity | None) -> None:
            self.pod = pod

        async def allocation(self, of: ClaimRef) -> ClaimAllocation:
            return ClaimAllocation(of, (), self.pod)

    async def waits(pod: PodIdentity) -> None:
        asked.append(str(pod))
        raise RetryLater(f"{pod} waits in queue lq")

    async def run(pod: PodIdentity | None) -> float:
        nothing, source = cast(Any, Nothing()), cast(Any, Source(pod))
        manager = ClaimManager(
            ClaimSettings(False, 10.0), "b", nothing, nothing, nothing, nothing, source, "n",
            lambda gpu: True, nothing, lambda error: None,
        )  # fmt: skip
        manager.admitted = waits

        async def with_room(allocation: ClaimAllocation, asks: Any) -> float:
            return 7.0

        manager._with_room = with_room  # type: ignore[method-assign]
        return await manager._prepare(claim)

    with pytest.raises(NotPrepared, match="team/p waits in queue lq"):
        asyncio.run(run(POD))
    assert asked == ["team/p"]
    assert asyncio.run(run(None)) == 7.0, "a claim of several pods"
    assert asked == ["team/p"]
