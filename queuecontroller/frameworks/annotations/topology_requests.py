"""Assignment of a pod set's pods to the domains that it was given.

Pods with a number (a label that the pod set's topologyRequest names) are assigned in its order, so
that consecutive pods share domains. Where one has no number, or it is out of bounds, each gets a
free place; so does one whose domain has none left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from queuecontroller.frameworks import names
from queuecontroller.frameworks.patches import Document, at
from queuecontroller.scheduler.placement.topology.slices import domains_of

_OVER: Final = ("Succeeded", "Failed")
Selector = Mapping[str, str]


def domains(assignment: Mapping[str, Any]) -> list[tuple[dict[str, str], int]]:
    """Node selectors and pod counts of a pod set's assignment in a Workload; empty: it has none."""
    given = assignment.get("topologyAssignment") or {}
    levels = given.get("levels") or []
    made = given.get("domains") or domains_of(given.get("slices") or [])
    return [
        (dict(zip(levels, one["values"], strict=True)), one["count"])
        for one in made
        if len(one["values"]) == len(levels)
    ]


def is_waiting(pod: Document) -> bool:
    gates = at(pod, ("spec", "schedulingGates"))
    return isinstance(gates, list) and any(
        isinstance(one, Mapping) and one.get("name") == names.TOPOLOGY_GATE for one in gates
    )


def is_over(pod: Document) -> bool:
    return at(pod, ("status", "phase")) in _OVER or bool(at_head(pod).get("deletionTimestamp"))


def at_head(pod: Document) -> Mapping[str, Any]:
    head = pod.get("metadata")
    return head if isinstance(head, Mapping) else {}


def places(
    given: Sequence[tuple[Selector, int]],
    request: Mapping[str, Any],
    pods: Sequence[Document],
    waiting: Sequence[Document],
) -> dict[str, Selector]:
    """Node selectors by name for the pods in `waiting`. `pods`: all existing pods of the pod set,
    the waiting ones among them."""
    names_waiting = {str(at_head(one).get("name")) for one in waiting}
    others = [
        one
        for one in pods
        if str(at_head(one).get("name")) not in names_waiting and not is_over(one)
    ]
    left = Counter({number: count for number, (_, count) in enumerate(given)})
    for pod in others:
        number = _domain_of(pod, given)
        if number is not None:
            left[number] -= 1
    total = sum(count for _, count in given)
    ranks = {str(at_head(one).get("name")): _rank(one, request) for one in waiting}
    found: dict[str, Selector] = {}
    anywhere = names_waiting
    if all(rank is not None and rank < total for rank in ranks.values()) and len(
        set(ranks.values())
    ) == len(ranks):
        by_rank = [number for number, (_, count) in enumerate(given) for _ in range(count)]
        for name, rank in ranks.items():
            assert rank is not None
            number = by_rank[rank]
            if left[number] > 0:
                left[number] -= 1
                found[name] = given[number][0]
        # A failed node was replaced by one that comes elsewhere in the list: others have all places
        # of the domain. A pod whose number an older one still has waits until that is gone.
        older = {_rank(one, request) for one in others}
        anywhere = {name for name in names_waiting - found.keys() if ranks[name] not in older}
    open_ = [number for number in range(len(given)) if left[number] > 0]
    for name in sorted(anywhere):
        if not open_:
            break
        number = open_[0]
        found[name] = given[number][0]
        left[number] -= 1
        if left[number] <= 0:
            open_.pop(0)
    return found


def _domain_of(pod: Document, given: Sequence[tuple[Selector, int]]) -> int | None:
    selector = at(pod, ("spec", "nodeSelector"))
    if not isinstance(selector, Mapping):
        return None
    for number, (labels, _) in enumerate(given):
        if all(selector.get(key) == value for key, value in labels.items()):
            return number
    return None


def _rank(pod: Document, request: Mapping[str, Any]) -> int | None:
    labels = at_head(pod).get("labels") or {}
    mine = _number(labels, request.get("podIndexLabel"))
    first = _number(at_head(pod).get("annotations") or {}, names.INDEX_OFFSET) or 0
    if mine is None or mine < first:
        return None
    mine -= first
    group, groups = request.get("subGroupIndexLabel"), request.get("subGroupCount")
    if not group or not isinstance(groups, int) or groups < 1:
        return mine
    index, each = _number(labels, group), request.get("podsOfGroup")
    if index is None or not isinstance(each, int):
        return None
    return index * each + mine if mine < each and index < groups else None


def _number(labels: Mapping[str, Any], name: object) -> int | None:
    text = labels.get(name) if isinstance(name, str) else None
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 10:
        return int(text)
    return None


def request_of(pod_set: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The topologyRequest of a Workload's pod set, and the number of pods in a group of it."""
    request = dict(pod_set.get("topologyRequest") or {})
    groups = request.get("subGroupCount")
    if isinstance(groups, int) and groups > 0:
        request["podsOfGroup"] = count // groups
    return request


def let_go_patch(pod: Document, selector: Selector) -> dict[str, Any]:
    """The patch that removes the pod's gate and binds it to its domain."""
    gates = at(pod, ("spec", "schedulingGates"))
    known = [one for one in gates if isinstance(one, Mapping)] if isinstance(gates, list) else []
    rest = [one for one in known if one.get("name") != names.TOPOLOGY_GATE]
    return {"spec": {"schedulingGates": rest or None, "nodeSelector": dict(selector)}}
