"""A node and the controller in network namespaces of their own, mutual TLS between them, and the cable pulled."""

from __future__ import annotations

import time

import pytest

from tests.kit.node import until
from tests.kit.queue.controller import QueueController
from tests.queue.serving.cable import Cable, NodeInSpace, both, cable

__all__ = ["both", "cable"]

pytestmark = pytest.mark.root


def test_a_partition_stops_nothing_and_starts_nothing(
    cable: Cable, both: tuple[QueueController, NodeInSpace]
) -> None:
    controller, node = both
    flags = ("--queue", "q", "--gpumem", "8Gi", "--cores", "30")
    first = node.run("first", "sleep", "600", flags=flags)
    until("first runs", lambda: node.grant("first"))
    cable.pull()
    until(
        "the lease is over",
        lambda: "session ended" in (node.directory / "daemon.log").read_text(),
        30,
    )
    late = node.run("late", "sleep", "600", flags=flags)
    time.sleep(2)  # not for logic: a wrong start would show itself within this time
    assert node.grant("late") is None
    assert node.grant("first") is not None
    assert first.process.poll() is None
    assert late.process.poll() is None
    cable.plug()
    until("late runs, soon after the cable is back", lambda: node.grant("late"))
    assert first.process.poll() is None
    phases = {
        one["metadata"]["name"].rsplit("-", 1)[0]: one["status"]["phase"]
        for one in controller.workloads()
    }
    assert phases["first"] == "Running"
    assert "Restored" not in controller.log
    assert [one["status"]["attempt"] for one in controller.workloads()] == [1, 1]


def test_a_node_may_not_speak_for_another(
    both: tuple[QueueController, NodeInSpace], cable: Cable
) -> None:
    controller, node = both
    until("connected", lambda: "connected to" in (node.directory / "daemon.log").read_text())
    node.daemon.terminate()  # type: ignore[union-attr]
    node.daemon.wait()  # type: ignore[union-attr]
    path = node.directory / "sluice.toml"
    path.write_text(path.read_text().replace('node_name = "n1"', 'node_name = "n2"'))
    node.start()
    until(
        "it is refused by name",
        lambda: (
            "n1 (node) may not act as a node (node n2)"
            in (node.directory / "daemon.log").read_text()
        ),
    )
    assert [one["metadata"]["name"] for one in controller.get("nodes")["items"]] == ["n1"]
