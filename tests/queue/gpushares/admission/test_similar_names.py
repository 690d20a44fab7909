"""Unknown names: similar ones are searched for within a bound."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from queuecontroller.gpushares.admission import (
    Rules,
    admit,
)
from queuecontroller.gpushares.admission.names import MAX_LOOKED_UP
from queuecontroller.gpushares.admission.pod_verdict import MAX_WARNINGS
from queuecontroller.kueueapi.manifests.validating import problems_of
from tests.queue.gpushares.admission.pods import pod

RULES = Rules(scheduler="sluice-scheduler")


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names for which a similar one was searched."""
    found: list[str] = []
    search = difflib.get_close_matches

    def counted(word: str, *more: Any, **kept: Any) -> list[str]:
        found.append(word)
        return search(word, *more, **kept)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return found


def test_similar_names_are_searched_for_a_few_only(searched: list[str]) -> None:
    """A pod with 5,500 such annotations took the webhook's loop 4.5 s."""
    many = {f"hami.io/vgpu-devices-to-alloca{n:05}": "x" for n in range(5_500)}
    assert len(admit(RULES, pod({"cpu": 1}, **many), "u", "t").warnings) == MAX_WARNINGS
    unlike = {f"nvidia.com/{n:05}": "x" for n in range(5_500)}
    admit(RULES, pod({"cpu": 1}, **unlike), "u", "t")
    limits = {f"nvidia.com/{n:05}": 1 for n in range(5_500)}
    admit(RULES, pod(limits), "u", "t")
    assert len(searched) <= 3 * MAX_LOOKED_UP


def test_fields_of_an_object_are_compared_for_a_few_only(searched: list[str]) -> None:
    document = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "q", "namespace": "n"},
        "spec": {"clusterQueue": "c", **{f"clusterQueu{n:05}": 1 for n in range(5_500)}},
    }
    assert len(problems_of(document)) >= 5_500
    assert len(searched) <= 3 * 64
