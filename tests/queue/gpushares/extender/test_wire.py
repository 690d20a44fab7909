"""kube-scheduler's documents: any case of keys, both forms of questions, and nothing that is believed unread."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from queuecontroller.gpushares.extender.pods import PodPlace, read_place, read_pod
from queuecontroller.gpushares.extender.wire import (
    BadQuestion,
    BindQuestion,
    Passed,
    read_bind,
    read_preemption,
    read_question,
    write_bind,
    write_filter,
    write_points,
    write_preemption,
)
from tests.queue.gpushares.extender.rooms import dumped, pod, share


@pytest.mark.parametrize("change", [str, str.lower, str.upper])
def test_keys_are_read_in_any_case_and_written_in_camel_case(change: Any) -> None:
    asked = read_question(dumped({change("Pod"): pod(), change("NodeNames"): ["a", "b"]}))
    assert (asked.pod["metadata"]["name"], asked.names, asked.nodes) == ("p", ("a", "b"), None)
    answer = json.loads(write_filter(asked, Passed(("a",), {"b": "full"}, {})))
    assert answer == {
        "NodeNames": ["a"],
        "FailedNodes": {"b": "full"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    fields = {"PodName": "p", "PodNamespace": "t", "PodUID": "u", "Node": "n"}
    bound = read_bind(dumped({change(key): value for key, value in fields.items()}))
    assert bound == BindQuestion("t", "p", "u", "n")
    table = {change("NodeNameToMetaVictims"): {"n": {change("Pods"): [{change("UID"): "v"}]}}}
    assert read_preemption(dumped({change("Pod"): pod(), **table}))[1] == {"n": (["v"], 0)}


def test_reasons_have_no_percent_sign_which_kube_scheduler_takes_for_a_format() -> None:
    full = "2 lack time (most free on one: 70 of 80 %), 12.5% of the memory"
    asked = read_question(dumped({"Pod": pod(), "NodeNames": ["a"]}))
    for answer in (Passed((), {"a": full}, {}), Passed((), {}, {"a": full}), full):
        assert b"%" not in write_filter(asked, answer)
    said = json.loads(write_filter(asked, Passed((), {"a": full}, {})))["FailedNodes"]["a"]
    assert said == "2 lack time (most free on one: 70 of 80 percent), 12.5 percent of the memory"


def test_whole_nodes_are_answered_with_whole_nodes() -> None:
    nodes = [{"metadata": {"name": name}, "spec": {"x": 1}} for name in "ab"]
    asked = read_question(dumped({"Pod": pod(), "Nodes": {"items": nodes}, "NodeNames": None}))
    answer = json.loads(write_filter(asked, Passed(("b",), {"a": "full"}, {})))
    assert answer["Nodes"]["items"] == [nodes[1]]
    assert "NodeNames" not in answer


def test_whole_pods_as_victims_are_read_too() -> None:
    victims = {"n": {"Pods": [pod("v")], "NumPDBViolations": 2}}
    found = read_preemption(dumped({"Pod": pod(), "NodeNameToVictims": victims}))[1]
    assert found == {"n": (["u-v"], 2)}
    assert json.loads(write_preemption({"n": (["v"], 1)})) == {
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "v"}], "NumPDBViolations": 1}}
    }
    assert json.loads(write_points([("a", 10)])) == [{"Host": "a", "Score": 10}]
    assert json.loads(write_bind("why")) == {"Error": "why"}


BAD = [
    b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"{}", b'{"Pod": 1, "NodeNames": []}',
    b'{"Pod": {"metadata": {}}, "NodeNames": []}',
    b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": [1]}',
    b'{"Pod": {"metadata": {}, "spec": {}}, "NodeNames": null, "Nodes": {"items": [{}]}}',
    dumped({"Pod": {"metadata": {}, "spec": {}}, "NodeNames": ["n"] * 20_001}),
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=range(len(BAD)))
def test_what_cannot_be_read_is_said(body: bytes) -> None:
    for read in (read_question, read_bind):
        with pytest.raises(BadQuestion):
            read(body)
    with pytest.raises(BadQuestion):
        read_preemption(body.replace(b"NodeNames", b"NodeNameToMetaVictims"))


def test_a_placement_comes_back_as_it_was_written() -> None:
    place = PodPlace(
        "n",
        {"main": (share("a", 1, 2), share("b", 3, 4, alone=True)), "first": (share("a", 9),)},
        ("first",),
        (share("a", 8, 0),),
        "t/w",
    )
    assert read_place(place.text()) == place
    assert [one.memory_bytes for one in place.held] == [1, 3, 8]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "null", "[" * 70_000, '{"node": 1, "containers": {}}',
        '{"node": "", "containers": {}}', '{"node": "n", "containers": []}',
        '{"node": "n", "containers": {"c": [{"uuid": "a", "memory_bytes": -1, "share_ppm": 0}]}}',
        '{"node": "n", "containers": {"c": [{"uuid": "a", "memory_bytes": 1.5, "share_ppm": 0}]}}',
        '{"node": "n", "containers": {"c": [{"uuid": "a", "memory_bytes": 1, "share_ppm": 2e6}]}}',
        '{"node": "n", "containers": {"c": [{"uuid": 1, "memory_bytes": 1, "share_ppm": 1}]}}',
        '{"node": "n", "containers": {"c": [1]}}', '{"node": "n", "containers": {"c": 1}}',
    ],
)  # fmt: skip
def test_what_we_would_not_have_written_is_no_placement(text: str) -> None:
    assert read_place(text) is None


@pytest.mark.parametrize("seed", range(10))
def test_no_document_makes_another_error_than_those_that_are_told(seed: int) -> None:
    rng = random.Random(seed)
    whole = {"Pod": pod(gpumem=1000, before={"gpumem": 5}), "NodeNames": ["a"]}

    def spoilt(value: Any) -> Any:
        if rng.random() < 0.05:
            return rng.choice([None, 1, "x", [], {}, True, "1" * 400, -1, 1e300])
        if isinstance(value, dict):
            return {key: spoilt(one) for key, one in value.items()}
        return [spoilt(one) for one in value] if isinstance(value, list) else value

    for _ in range(500):
        try:
            asked = read_question(dumped(spoilt(whole)))
            read_pod(asked.pod)
        except (BadQuestion, KeyError, TypeError, AttributeError, ValueError):
            pass
