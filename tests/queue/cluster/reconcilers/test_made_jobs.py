"""Jobs that other jobs made: their pods count for the job that holds the quota."""

from __future__ import annotations

from typing import Any

import pytest

from queuecontroller.cluster.cache.job_context import JOBS, KINDS, made_jobs_active
from queuecontroller.cluster.cache.objects import ObjectCache

SETS = next(kind for kind in KINDS if kind.kind == "JobSet")
TRAINS = next(kind for kind in KINDS if kind.kind == "TrainJob")


def made(kind: Any, name: str, owner: Any = None, **status: int) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "namespace": "n", "uid": f"u-{name}"}
    head["resourceVersion"] = "1"
    if owner is not None:
        above, its_name = owner
        reference = {"apiVersion": above.api_version, "kind": above.kind, "name": its_name}
        head["ownerReferences"] = [{**reference, "uid": f"u-{its_name}", "controller": True}]
    document = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": head}
    return {**document, "status": status}


@pytest.mark.parametrize(
    ("status", "active"),
    [({"active": 1}, True), ({"active": 0, "terminating": 1}, True), ({"terminating": 0}, False)],
)
def test_pods_of_a_job_below_count_at_any_depth(status: dict[str, int], active: bool) -> None:
    cache = ObjectCache()
    train, jobset = made(TRAINS, "train"), made(SETS, "set", (TRAINS, "train"))
    job = made(JOBS, "job", (SETS, "set"), **status)
    for kind, one in ((TRAINS, train), (SETS, jobset), (JOBS, job)):
        cache.take(kind, one)
    assert made_jobs_active(cache, train) is active
    assert made_jobs_active(cache, jobset) is active
    assert not made_jobs_active(cache, job), "its own status counts"
    assert not made_jobs_active(cache, made(SETS, "other"))
