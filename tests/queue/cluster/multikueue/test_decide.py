"""Decisions about a Workload: its state in the workers, and the answer of its check."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.admissionchecks.states import Answer, State
from queuecontroller.cluster.cache.multikueue import (
    INCREMENTAL,
    ROUND_S,
    MultiKueueSettings,
)
from queuecontroller.cluster.cache.objects import Document, seconds_of
from queuecontroller.cluster.multikueue.copies import open_gate_patch
from queuecontroller.cluster.multikueue.decide import (
    GONE,
    LOST,
    OUT_OF_SYNC,
    Decision,
    Facts,
    Want,
    Worker,
    decide,
)
from tests.queue.cluster.multikueue.documents import AT, condition, copy, job, job_there, workload

SETTINGS = MultiKueueSettings()
ADMITTED = condition("Admitted")
LATER = condition("Admitted", "2026-11-28T10:00:05Z")


JOB = job()


def decided(
    mine: Document | None,
    workers: dict[str, Worker],
    settings: MultiKueueSettings = SETTINGS,
    *,
    job: Document | None = JOB,
    check: str = "mk",
    others_ready: bool = True,
    since_round_s: float = 0.0,
    chosen: str = "",
    now: str = AT,
) -> Decision:
    facts = Facts(
        mine,
        job,
        check,
        workers,
        list(workers),
        since_round_s,
        others_ready,
        chosen,
        seconds_of(now) or 0.0,
    )
    return decide(facts, settings)


def test_a_workload_with_quota_is_offered_to_every_reachable_worker() -> None:
    found = decided(workload(), {"a": Worker(), "b": Worker(), "c": Worker(lost_s=1.0)})
    assert found.want == {"a": Want.COPY, "b": Want.COPY}
    assert found.nominated == ("a", "b")
    assert found.answer is None


def test_nothing_is_sent_before_the_other_checks_are_ready() -> None:
    found = decided(workload(), {"a": Worker(), "b": Worker(copy=copy())}, others_ready=False)
    assert found == Decision({"b": Want.NOTHING})


def test_the_worker_that_admitted_first_gets_the_job_and_the_others_nothing() -> None:
    workers = {
        "a": Worker(copy=copy(LATER)),
        "b": Worker(copy=copy(ADMITTED)),
        "c": Worker(copy=copy()),
    }
    found = decided(workload(), workers)
    assert found.want == {"a": Want.NOTHING, "b": Want.JOB, "c": Want.NOTHING}
    assert found.answer is None, "its job is not there yet"
    workers["b"] = Worker(copy=copy(ADMITTED), job=job_there())
    found = decided(workload(), workers)
    assert found.answer == Answer(State.READY, 'The workload was admitted on "b"')
    assert found.cluster == found.status_of == "b"


def test_a_job_stays_with_the_worker_that_it_is_sent_to() -> None:
    """Its name may be on the way to the Workload's status while another worker is seen to have
    admitted its copy in the same second, or before."""
    workers = {"a": Worker(copy=copy(ADMITTED)), "b": Worker(copy=copy(LATER))}
    found = decided(workload(), workers, chosen="b")
    assert found.want == {"a": Want.NOTHING, "b": Want.JOB}
    workers["b"] = Worker(copy=copy(LATER), job=job_there())
    for chosen in ("b", ""):  # Also where the manager has just begun to lead.
        found = decided(workload(), workers, chosen=chosen)
        assert found.want == {"a": Want.NOTHING, "b": Want.JOB}
        assert found.cluster == "b"
    workers["b"] = Worker(copy=copy())
    assert decided(workload(), workers, chosen="b").want == {"a": Want.JOB, "b": Want.NOTHING}


def test_a_worker_that_cannot_be_reached_wins_nothing() -> None:
    found = decided(workload(), {"a": Worker(lost_s=3.0, copy=copy(ADMITTED)), "b": Worker()})
    assert found.want == {"b": Want.COPY}


def ready(cluster: str = "a", **status: Any) -> dict[str, Any]:
    return workload("Ready", ("QuotaReserved", "Admitted"), **{"clusterName": cluster, **status})


def test_an_admitted_workload_stays_in_its_worker() -> None:
    found = decided(
        ready(), {"a": Worker(copy=copy(LATER), job=job_there()), "b": Worker(copy=copy(ADMITTED))}
    )
    assert found == Decision({"a": Want.JOB, "b": Want.NOTHING}, status_of="a")


@pytest.mark.parametrize(
    ("lost_s", "answer", "again_s"),
    [(1.0, None, 899.0), (899.0, None, 1.0), (900.0, Answer(State.RETRY, LOST), None)],
)
def test_a_lost_worker_is_waited_for(
    lost_s: float, answer: Answer | None, again_s: float | None
) -> None:
    found = decided(ready(), {"a": Worker(lost_s=lost_s), "b": Worker()})
    assert (found.answer, found.again_s, found.want) == (answer, again_s, {})


changed = copy(ADMITTED)
changed["spec"] = {**changed["spec"], "podSets": [{"name": "main", "count": 2}]}


@pytest.mark.parametrize(
    ("there", "message", "want"),
    [
        pytest.param(None, GONE, {}, id="its copy is gone"),
        pytest.param(copy(), GONE, {}, id="it is not admitted any more"),
        pytest.param(copy(ADMITTED, deletionTimestamp="x"), GONE, {}, id="it is being deleted"),
        pytest.param(changed, OUT_OF_SYNC, {"a": Want.NOTHING}, id="it has other pods"),
        pytest.param(
            copy(ADMITTED, condition("Evicted")),
            'Workload evicted on worker cluster: "a", resetting for re-admission.'
            ' Previously: "Ready"',
            {},
            id="it is evicted there",
        ),
    ],
)
def test_a_workload_that_lost_its_worker_is_dispatched_again(
    there: Document | None, message: str, want: dict[str, Want]
) -> None:
    found = decided(ready(), {"a": Worker(copy=there), "b": Worker()})
    assert found == Decision(want, Answer(State.RETRY, message))


def test_a_worker_that_the_configuration_names_no_more_is_left() -> None:
    workers = {"a": Worker(copy=copy(ADMITTED))}
    found = decide(Facts(ready("gone"), job(), "mk", workers, ["a"]), SETTINGS)
    assert found == Decision({"a": Want.NOTHING}, Answer(State.RETRY, GONE))


@pytest.mark.parametrize(
    "mine",
    [
        pytest.param(None, id="deleted"),
        pytest.param(workload(conditions=("Finished",)), id="finished"),
        pytest.param(
            workload("Ready", ("QuotaReserved", "Evicted"), clusterName="a"), id="evicted"
        ),
        pytest.param(workload("Rejected"), id="rejected"),
        pytest.param(workload(admission=None), id="without quota"),
    ],
)
def test_what_does_not_run_has_nothing_in_a_worker(mine: Document | None) -> None:
    found = decided(mine, {"a": Worker(copy=copy(ADMITTED), job=job_there()), "b": Worker()})
    assert found.want == {"a": Want.NOTHING}
    assert found.answer is None


def test_a_retry_waits_for_the_eviction() -> None:
    assert decided(workload("Retry"), {"a": Worker(copy=copy(ADMITTED))}) == Decision()


def test_a_copy_is_kept_while_no_check_of_this_controller_is_known() -> None:
    assert decided(ready(), {"a": Worker(copy=copy(ADMITTED))}, check="") == Decision()


def test_the_end_in_a_worker_is_the_end() -> None:
    over = condition("Finished", reason="Succeeded", message="done")
    found = decided(
        ready(), {"a": Worker(copy=copy(ADMITTED, over), job=job_there()), "b": Worker()}
    )
    assert found == Decision(status_of="a", finished=("Succeeded", "done"))


@pytest.mark.parametrize(
    ("owner", "by", "message"),
    [
        pytest.param(
            {},
            "",
            'Expecting spec.managedBy to be "kueue.x-k8s.io/multikueue" not ""',
            id="not managed by it",
        ),
        pytest.param(
            {},
            "else",
            'Expecting spec.managedBy to be "kueue.x-k8s.io/multikueue" not "else"',
            id="managed by another",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Pod"},
            "",
            'No multikueue adapter found for owner kind "/v1, Kind=Pod"',
            id="a pod",
        ),
        pytest.param(None, "", "No multikueue adapter found", id="without an owner"),
    ],
)
def test_a_job_that_cannot_run_elsewhere_is_rejected(
    owner: dict[str, str] | None, by: str, message: str
) -> None:
    mine = workload()
    head = mine["metadata"]
    head["ownerReferences"] = [] if owner is None else [{**head["ownerReferences"][0], **owner}]
    other = job()
    del other["spec"]["managedBy"]
    if by:
        other["spec"]["managedBy"] = by
    found = decided(mine, {"a": Worker()}, job=other)
    assert found.answer is not None
    assert found.answer.state == State.REJECTED
    assert found.answer.message.endswith(message)
    assert found.want == {}


def test_an_elastic_job_is_rejected() -> None:
    elastic = job()
    elastic["metadata"]["annotations"] = {"kueue.x-k8s.io/elastic-job": "true"}
    found = decided(workload(), {"a": Worker()}, job=elastic)
    assert found.answer is not None
    assert found.answer.state == State.REJECTED


def test_what_a_worker_refuses_is_in_the_check() -> None:
    found = decided(workload(), {"a": Worker(refusal="403 Forbidden: no"), "b": Worker()})
    assert found.answer == Answer(State.PENDING, "a: 403 Forbidden: no")


def test_the_incremental_dispatcher_nominates_three_workers_in_a_round() -> None:
    settings = MultiKueueSettings(dispatcher=INCREMENTAL)
    workers = {name: Worker() for name in "edcba"}
    found = decided(workload(), workers, settings)
    assert found.nominated == ("a", "b", "c")
    assert found.want == dict.fromkeys("abc", Want.COPY)
    given = workload(nominatedClusterNames=["a", "b", "c"])
    found = decided(given, workers, settings, since_round_s=10.0)
    assert (found.nominated, found.again_s) == (None, ROUND_S - 10.0)
    found = decided(given, workers, settings, since_round_s=ROUND_S)
    assert found.nominated == ("a", "b", "c", "d", "e")


def test_another_dispatcher_nominates_alone() -> None:
    settings = MultiKueueSettings(dispatcher="a.io/dispatcher")
    assert decided(workload(), {"a": Worker(), "b": Worker(copy=copy())}, settings).want == {
        "b": Want.NOTHING
    }
    given = workload(nominatedClusterNames=["b"])
    found = decided(given, {"a": Worker(), "b": Worker()}, settings)
    assert (found.want, found.nominated) == ({"b": Want.COPY}, None)


def waits(at: str = AT, opened: str = "") -> Worker:
    """A worker whose copy would preempt."""
    found = copy(condition("BlockedOnPreemptionGates", at))
    if opened:
        found |= {"status": {**found["status"], **open_gate_patch(found, opened)["status"]}}
    return Worker(copy=found)


@pytest.mark.parametrize(
    ("workers", "now", "opened", "again_s"),
    [
        pytest.param({"a": Worker(copy=copy()), "b": Worker()}, AT, "", None, id="nobody has to"),
        pytest.param(
            {"a": waits("2026-11-28T10:00:01Z"), "b": waits()}, AT, "b", 300.0, id="the first"
        ),
        pytest.param(
            {"a": waits(), "b": waits(opened=AT)},
            "2026-11-28T10:01:00Z",
            "",
            240.0,
            id="one of them may already",
        ),
        pytest.param(
            {"a": waits(), "b": waits(opened=AT)},
            "2026-11-28T10:05:00Z",
            "a",
            300.0,
            id="that one has not come to it in five minutes",
        ),
        pytest.param(
            {"a": waits(), "b": waits(opened="2029-01-01T00:00:00Z")},
            AT,
            "a",
            300.0,
            id="a worker changed the time to one years from now",
        ),
        pytest.param({"a": waits(opened=AT)}, AT, "", None, id="the only one may"),
        pytest.param(
            {"a": Worker(lost_s=1.0, copy=waits().copy), "b": waits(LATER["lastTransitionTime"])},
            AT,
            "b",
            300.0,
            id="the first is not reachable",
        ),
    ],
)
def test_one_worker_at_a_time_may_preempt(
    workers: dict[str, Worker], now: str, opened: str, again_s: float | None
) -> None:
    found = decided(workload(), workers, now=now)
    assert [name for name, want in found.want.items() if want is Want.UNGATED_COPY] == [
        name for name in [opened] if name
    ]
    assert found.again_s == again_s
    alone = decided(workload(), workers, MultiKueueSettings(gates_preemption=False), now=now)
    assert Want.UNGATED_COPY not in alone.want.values()


CONDITIONS = st.sets(
    st.sampled_from(["Admitted", "BlockedOnPreemptionGates", "Evicted", "Finished"])
)
COPIES = st.none() | CONDITIONS.map(lambda names: copy(*(condition(one) for one in sorted(names))))
WORKERS = st.builds(
    Worker,
    st.none() | st.floats(0, 2000),
    COPIES,
    st.none() | st.just(job_there()),
)


@given(
    st.sampled_from(["Pending", "Ready", "Retry", "Rejected"]),
    st.none() | st.sampled_from(["a", "b", "c"]),
    st.fixed_dictionaries(dict.fromkeys("abc", WORKERS)),
    st.sampled_from(["", "a", "b", "c", "gone"]),
)
def test_at_most_one_worker_ever_gets_the_job(
    state: str, cluster: str | None, workers: dict[str, Worker], chosen: str
) -> None:
    mine = workload(state, **({"clusterName": cluster} if cluster else {}))
    before = deepcopy(mine)
    found = decided(mine, workers, chosen=chosen)
    assert mine == before
    holders = [name for name, want in found.want.items() if want is Want.JOB]
    assert len(holders) <= 1
    for name in holders:
        there = workers[name]
        assert there.lost_s is None
        assert there.copy is not None
        # Every other copy that can be reached goes.
        for other, one in workers.items():
            if other == name or one.lost_s is not None:
                continue
            if one.copy is not None or one.job is not None:
                assert found.want[other] is Want.NOTHING
    if state == "Ready" and holders:
        assert holders == [cluster]
