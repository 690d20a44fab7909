"""Detections of a node appear on the queue's page, over the real wire; and again after the
controller was killed."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from nodeagent.ports.views import NodeEvent
from queuecontroller.server.api.messages import read_detections
from queuecontroller.server.api.wire import Wire, find_descriptors
from queuecontroller.state.objects.submission import Refused
from tests.kit.queue.controller import QueueController
from tests.queue.serving.puppet import Puppet

DEADLINE_S = 60.0
WIRE = Wire(find_descriptors())


def shown(controller: QueueController, wanted: int) -> dict[str, dict[str, Any]]:
    """Detections that a new viewer gets, once there are as many as are wanted."""
    origin, _, ticket = controller.cli("web").stdout.strip().partition("#ticket=")
    enter = urllib.request.Request(
        f"{origin}api/enter",
        json.dumps({"secret": ticket}).encode(),
        {"Content-Type": "application/json", "X-Sluice-Page": "1"},
    )
    with urllib.request.urlopen(enter, timeout=DEADLINE_S) as answer:
        cookie = answer.headers["Set-Cookie"].split(";")[0]
    stream = urllib.request.Request(f"{origin}api/stream", headers={"Cookie": cookie})
    found: dict[str, dict[str, Any]] = {}
    ends_s = time.monotonic() + DEADLINE_S
    with urllib.request.urlopen(stream, timeout=DEADLINE_S) as answer:
        event = ""
        for line in answer:
            assert time.monotonic() < ends_s, found
            name, _, rest = line.decode().rstrip().partition(": ")
            event = rest if name == "event" else event
            if name == "data" and event == "delta":
                for kind, _namespace, key, fields, *_ in json.loads(rest):
                    if kind == "Detection" and fields is not None:
                        found[key] = fields
            if len(found) >= wanted:
                break
    return found


def test_a_nodes_detections_are_shown_and_told_again_to_another_controller(tmp_path: Path) -> None:
    controller = QueueController(tmp_path, settings=["nodes.report_s=0.2", "nodes.lease_s=4"])

    async def scene() -> None:
        async with Puppet(controller.address) as node:
            evidence = json.dumps({"pid": 4711, "exe": "/opt/odd"})
            node.events += [
                NodeEvent(1, 100.0, "gpu", "warning", "hot"),
                NodeEvent(2, 101.0, "foreign_libcuda", "warning", "x", 0, None, 7, evidence),
            ]
            (one,) = (await asyncio.to_thread(shown, controller, 1)).items()
            assert one[0] == "n1/000000000002"
            assert one[1]["evidence"] == {"pid": "4711", "exe": "/opt/odd"}
            assert (one[1]["kind"], one[1]["node"], one[1]["at"]) == ("foreign_libcuda", "n1", 101)
            node.events.append(NodeEvent(3, 102.0, "act", "critical", "kill of pid 4711"))
            assert len(await asyncio.to_thread(shown, controller, 2)) == 2
            await asyncio.to_thread(controller.kill)
            await asyncio.to_thread(controller.start)
            assert len(await asyncio.to_thread(shown, controller, 2)) == 2

    controller.start()
    try:
        asyncio.run(scene())
    finally:
        controller.stop()


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ({"at_unix_seconds": float("nan")}, "at_unix_seconds"),
        ({"at_unix_seconds": 1e300}, "at_unix_seconds"),
        ({"number": (1 << 64) - 1}, "number"),
        ({"kind": "k" * 65}, "kind"),
        ({"text": "t" * 2_000}, "text"),
        ({"evidence": "e" * 3_000}, "evidence"),
        ({"workload": "w" * 5_000}, "workload"),
    ],
)
def test_a_detection_that_cannot_be_is_refused(told: dict[str, Any], what: str) -> None:
    with pytest.raises(Refused, match=what):
        read_detections([WIRE.NodeDetection(**told)])
    with pytest.raises(Refused, match="more than 32"):
        read_detections([WIRE.NodeDetection()] * 33)
    (one,) = read_detections([WIRE.NodeDetection(text="a\x1b[31mb")])
    assert one.text == "a?[31mb"
