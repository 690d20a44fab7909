"""Ephemeral containers, which `kubectl debug` adds to a pod that runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from queuecontroller.gpushares.admission import Question, Quotas, Rules, answer, counted
from tests.queue.gpushares.admission.pods import pod

RULES = Rules(scheduler="sluice-scheduler")
SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
SYSADMIN = {"name": "debugger", "securityContext": {"privileged": True}}
GENERAL = {"name": "look", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}


def refusals(limits: dict[str, Any], before: list[Any], after: list[Any]) -> list[str]:
    old = pod(limits)
    old["spec"]["ephemeralContainers"] = before
    new = copy.deepcopy(old)
    new["spec"]["ephemeralContainers"] = after
    asked = Question(new, old, "team", "ann", "t")
    return [str(one) for one in answer(RULES, Quotas(counted(RULES.devices)), asked, 0).problems]


def test_a_privileged_one_is_refused_in_a_pod_with_devices() -> None:
    (why,) = refusals(SHARE, [], [GENERAL, SYSADMIN])
    assert why.startswith("spec.ephemeralContainers: container debugger is privileged")


@pytest.mark.parametrize(
    ("limits", "before", "after"),
    [
        (SHARE, [], [GENERAL]),
        (SHARE, [SYSADMIN], [SYSADMIN]),
        (SHARE, [SYSADMIN], [SYSADMIN, GENERAL]),
        ({"cpu": "1"}, [], [SYSADMIN]),
        (SHARE, [], ["odd", None]),
    ],
    ids=["not privileged", "unchanged", "beside an older one", "no device", "not a container"],
)
def test_all_others_are_added(limits: dict[str, Any], before: list[Any], after: list[Any]) -> None:
    assert refusals(limits, before, after) == []
