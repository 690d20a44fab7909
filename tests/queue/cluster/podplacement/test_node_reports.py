"""A new leader plans nothing for nodes before their agents have reported to it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from queuecontroller.cluster.podplacement.node_reports import LONGEST_S, NodeReports
from queuecontroller.scheduler.placement.topology.ground import NodeFacts

SECOND = 1_000_000_000
GPUS = NodeFacts("a", {}, {"cpu": 1, "nvidia.com/gpu": 20})


def reports(*facts: NodeFacts, connected: dict[str, bool]) -> NodeReports:
    ground: Any = SimpleNamespace(nodes={one.name: one for one in facts})
    nodes: Any = SimpleNamespace(
        nodes={name: SimpleNamespace(connected=here) for name, here in connected.items()}
    )
    return NodeReports(ground, nodes, "nvidia.com/gpu", 5 * SECOND)


def test_a_node_with_gpus_is_waited_for() -> None:
    connected = {"a": False}
    made = reports(GPUS, replace(GPUS, name="b"), connected=connected)
    assert not made.complete(5 * SECOND)
    connected.update(a=True)
    made = reports(GPUS, replace(GPUS, name="b"), connected=connected)
    assert not made.complete(6 * SECOND), "b has not reported"
    assert reports(GPUS, connected=connected).complete(6 * SECOND)


def test_a_node_whose_agent_restarts_is_waited_for_and_others_are_not() -> None:
    restarting = replace(GPUS, allocatable={"cpu": 1, "nvidia.com/gpu": 0})
    assert not reports(restarting, connected={}).complete(5 * SECOND)
    assert reports(replace(GPUS, allocatable={"cpu": 1}), connected={}).complete(5 * SECOND)
    assert reports(replace(GPUS, ready=False), connected={}).complete(5 * SECOND)


def test_a_dead_agent_stops_the_plans_for_a_minute_at_most() -> None:
    made = reports(GPUS, connected={})
    end_ns = int((5 + LONGEST_S) * SECOND)
    assert not made.complete(end_ns - 1)
    assert made.complete(end_ns)
    assert made.complete(5 * SECOND), "once it is complete it stays so"
