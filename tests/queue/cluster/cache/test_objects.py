"""The newest version of an object counts, in whatever order versions arrive; a deleted object stays deleted."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queuecontroller.cluster.cache.kinds import WORKLOADS
from queuecontroller.cluster.cache.objects import ObjectCache, key_of, pruned, version_of
from queuecontroller.cluster.setup.job_webhooks import operations


def document(version: int, uid: str = "u") -> dict[str, Any]:
    head = {"namespace": "n", "name": "w", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": {**head, "managedFields": [{"manager": "m"}]}}


@given(st.permutations(range(1, 7)))
def test_an_older_version_is_no_news(order: list[int]) -> None:
    world, newest = ObjectCache(), 0
    for version in order:
        assert world.take(WORKLOADS, pruned(document(version))) == (version > newest)
        newest = max(newest, version)
    known = world.get(WORKLOADS, "n/w")
    assert known is not None
    assert (version_of(known), key_of(known)) == (6, "n/w")
    assert "managedFields" not in known["metadata"]


def test_words_that_all_say_are_kept_once() -> None:
    made = [
        pruned(json.loads(json.dumps({**document(1), "spec": {"a": ["word", 1, None]}})))
        for _ in "ab"
    ]
    assert made[0] == made[1]
    (first, second) = ([*one["spec"], *one["spec"]["a"]] for one in made)
    assert all(one is other for one, other in zip(first, second, strict=True))


def test_an_answer_that_comes_late_brings_nothing_back() -> None:
    world = ObjectCache()
    world.take(WORKLOADS, document(1))
    assert world.drop(WORKLOADS, "n/w", "u")
    assert not world.take(WORKLOADS, document(2))
    assert world.get(WORKLOADS, "n/w") is None
    assert world.take(WORKLOADS, document(3, "another"))


def test_the_end_of_one_is_not_that_of_another_by_its_name() -> None:
    world = ObjectCache()
    world.take(WORKLOADS, document(1, "old"))
    world.take(WORKLOADS, document(5, "new"))  # the answer to our own write
    assert not world.drop(WORKLOADS, "n/w", "old")
    known = world.get(WORKLOADS, "n/w")
    assert known is not None
    assert known["metadata"]["uid"] == "new"


def test_a_merge_patch_as_a_json_patch() -> None:
    made = {"spec": {"suspend": False, "x": 1}, "metadata": {"labels": {"a/b": "1"}}}
    patch = {
        "spec": {"suspend": True, "x": None, "gone": None},
        "metadata": {"labels": {"a/b": "2", "c~d": "3"}, "annotations": {"e": "f"}},
    }
    assert list(operations(made, patch)) == [
        {"op": "add", "path": "/spec/suspend", "value": True},
        {"op": "remove", "path": "/spec/x"},
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "add", "path": "/metadata/labels/c~0d", "value": "3"},
        {"op": "add", "path": "/metadata/annotations", "value": {"e": "f"}},
    ]
