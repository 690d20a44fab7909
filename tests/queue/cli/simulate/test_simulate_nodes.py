"""`sluice-queue simulate` with nodes: work is placed on GPUs, and what is lost to fragments is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cli.main import main

QUEUES = """
kind: ResourceFlavor
metadata: {name: plain}
spec: {nodeLabels: {pool: gpus}}
---
kind: ClusterQueue
metadata: {name: a}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, nvidia.com/gpumem, nvidia.com/gpucores, nvidia.com/mig-1g.10gb]
    flavors:
    - name: plain
      resources:
      - {name: nvidia.com/gpu, nominalQuota: QUOTA}
      - {name: nvidia.com/gpumem, nominalQuota: 10M}
      - {name: nvidia.com/gpucores, nominalQuota: 100k}
      - {name: nvidia.com/mig-1g.10gb, nominalQuota: 100}
---
kind: LocalQueue
metadata: {name: main, namespace: team}
spec: {clusterQueue: a}
"""
NODE = """
---
kind: Node
metadata:
  name: n1
  labels: {pool: gpus}
  annotations: {sluice.dev/gpus: '[{"memory": "80Gi", "count": 2, "model": "NVIDIA H100"}]'}
"""
DISCOVERED = """
---
kind: Node
metadata:
  name: n1
  labels:
    pool: gpus
    nvidia.com/gpu.count: "2"
    nvidia.com/gpu.memory: "81920"
    nvidia.com/gpu.product: NVIDIA-H100-80GB-HBM3
status: {allocatable: {nvidia.com/gpu: 2}}
"""


def job(at_s: float, name: str, gib: int, cores: int, **more: object) -> str:
    requests = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": gib * 1024, "nvidia.com/gpucores": cores}
    given = {"at_s": at_s, "queue": "team/main", "name": name, "requests": requests}
    return json.dumps({**given, **more})


def node(at_s: float, name: str, **more: object) -> str:
    gpus = [{"memory": "80Gi", "count": 2}]
    return json.dumps(
        {"at_s": at_s, "node": name, "labels": {"pool": "gpus"}, "gpus": gpus, **more}
    )


@pytest.fixture
def play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def played(manifests: str, *lines: str, quota: str = "100", output: str = "json") -> Any:
        (tmp_path / "q.yaml").write_text(manifests.replace("QUOTA", quota))
        (tmp_path / "t.jsonl").write_text("\n".join(lines))
        arguments = ["-f", str(tmp_path / "q.yaml"), "--trace", str(tmp_path / "t.jsonl")]
        status = main(["simulate", "-o", output, *arguments])
        said = capsys.readouterr()
        if status:
            return said.err
        return json.loads(said.out) if output == "json" else said.out

    return played


@pytest.mark.parametrize("nodes", [NODE, DISCOVERED], ids=["annotated", "discovered"])
def test_work_is_placed_on_the_gpus_of_nodes(play: Any, nodes: str) -> None:
    jobs = [job(0, f"j{i}", 50, 40, runs_s=100) for i in range(3)]
    found = play(QUEUES + nodes, *jobs)
    assert found["finished"] == 3
    assert found["ended_s"] == 200.0, "two GPUs hold one of 50 GiB each, the third waits"
    assert found["waits_s"]["a"]["p95"] == 100.0
    assert found["placed"] == {}
    half = found["gpus"]["fragmentation"]["50%"]
    assert half["worst"] == 1.0, "30 GiB are left on each, of no use for a half"
    assert half["mean"] == pytest.approx((1.0 + 30 / 110) / 2, abs=1e-3)
    assert half["end"] == 0.0
    assert found["gpus"]["memory_used_ratio"] == pytest.approx((100 + 50) / 320, abs=1e-3)
    points = found["gpus"]["timeline"]
    assert [one["at_s"] for one in points] == [0.0, 100.0, 200.0]
    assert [one["pending"] for one in points] == [1, 0, 0]
    assert [one["running"] for one in points] == [2, 1, 0]


def test_a_node_comes_and_goes_and_takes_its_work_along(play: Any) -> None:
    found = play(
        QUEUES,
        node(10, "n1"),
        node(50, "n2"),
        job(0, "long", 80, 100, runs_s=60),
        json.dumps({"at_s": 30, "node": "n1", "gone": True}),
    )
    assert found["waits_s"]["a"]["p50"] == 10.0
    assert found["lost"] == 1
    assert found["finished"] == 1
    assert found["ended_s"] == 110.0, "begun anew on n2 at 50"


def test_quota_follows_the_nodes_where_it_is_auto(play: Any) -> None:
    small = [{"memory": "80Gi", "slots": 2}]
    jobs = [job(0, f"j{i}", 1, 1, runs_s=1000) for i in range(3)]
    found = play(
        QUEUES, node(0, "n1", gpus=small), *jobs, node(500, "n2", gpus=small), quota="auto"
    )
    assert found["waits_s"]["a"] == {"count": 3, "p50": 0.0, "p95": 500.0}


def test_a_high_priority_takes_room_and_instances_have_their_places(play: Any) -> None:
    mig = {"memory": "80Gi", "mig": ["1g.10gb", "3g.40gb", "7g.80gb"]}
    pods = NODE.replace('"model"', '"slots": 4, "model"').replace("]'", f", {json.dumps(mig)}]'")
    wants = """
---
kind: Job
metadata: {name: slices, namespace: team, labels: {kueue.x-k8s.io/queue-name: main}}
spec:
  parallelism: 2
  template:
    spec: {containers: [{name: c, resources: {requests: {nvidia.com/mig-1g.10gb: 1}}}]}
---
kind: Pod
metadata:
  name: alone
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: main}
  annotations: {sluice.dev/share-policy: exclusive}
spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]}
"""
    found = play(QUEUES + pods + wants, job(1, "low", 80, 100), job(2, "high", 80, 100, priority=9))
    assert found["preemptions"] == 1
    assert found["placed"]["team/job-slices"] == [
        {"node": "n1", "gpus": ["GPU-n1-2: 1g.10gb at 6"]},
        {"node": "n1", "gpus": ["GPU-n1-2: 1g.10gb at 5"]},
    ]
    assert found["placed"]["team/pod-alone"][0]["gpus"] == ["GPU-n1-0: 81920 MiB, 100 %"]
    assert found["gpus"]["fragmentation"]["mig-3g.40gb"]["fits"] == 1


def test_a_table_says_it_to_people_and_the_same_trace_gives_the_same(play: Any) -> None:
    jobs = [job(i * 7, f"j{i}", 10 + i % 40, 10 + i % 60, runs_s=50 + i) for i in range(60)]
    text = play(QUEUES + NODE, *jobs, output="table")
    for part in ("fragmentation of free memory", "over time", "100%", "GPUs:"):
        assert part in text
    assert play(QUEUES + NODE, *jobs) == play(QUEUES + NODE, *jobs)


def test_a_long_run_keeps_its_timeline_short(play: Any) -> None:
    jobs = [job(i, f"j{i}", 10, 10, runs_s=3) for i in range(700)]
    points = play(QUEUES + NODE, *jobs)["gpus"]["timeline"]
    assert 50 <= len(points) <= 200
    assert [one["at_s"] for one in points] == sorted(one["at_s"] for one in points)


def test_nodes_that_say_too_little_are_told_and_quota_decides(play: Any) -> None:
    bare = NODE.replace("annotations", "unused").replace("sluice.dev/gpus", "x") + (
        "status: {allocatable: {nvidia.com/gpu: 8}}\n"
    )
    bare = bare.replace("  unused:", "  annotations:")
    found = play(QUEUES + bare, job(0, "one", 80, 100))
    assert "placed" not in found
    assert any("Node n1 is not used for placement" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"at_s": 0, "node": "n"}', "line 1: gpus is missing"),
        ('{"at_s": 0, "node": "n", "gpus": [{}]}', "gpus[0].memory: at least 1Mi is needed"),
        ('{"at_s": 0, "node": "n", "gpus": [{"memory": "8Gi", "slots": 0}]}', "gpus[0].slots"),
        (
            '{"at_s": 0, "node": "n", "gpus": [{"memory": "8Gi", "mig": ["big"]}]}',
            "expected a MIG profile, got 'big'",
        ),
        ('{"at_s": 0, "node": "n", "gpus": [], "label": {}}', "did you mean labels?"),
        ('{"at_s": 0, "node": "n", "gone": "yes"}', "gone: must be true or false"),
        (
            '{"at_s": 0, "node": "n", "gone": true, "gpus": []}',
            "a node with gone takes no other field",
        ),
        ('{"at_s": -1, "node": "n", "gpus": []}', "at_s"),
        ('{"at_s": 0, "node": 7, "gpus": []}', "node"),
        ('{"at_s": 0, "node": "n", "gpus": [{"memory": "8Gi", "count": 1e9}]}', "gpus[0].count"),
    ],
)
def test_a_wrong_line_about_a_node_is_named(play: Any, line: str, says: str) -> None:
    found = play(QUEUES, line)
    assert isinstance(found, str)
    assert says in found
    assert "t.jsonl: line 1" in found


@pytest.mark.parametrize("text", ["not json", "7", '[{"memory": "80Gi", "size": 1}]', "[7]"])
def test_a_wrong_annotation_is_named(play: Any, text: str) -> None:
    broken = NODE.replace('[{"memory": "80Gi", "count": 2, "model": "NVIDIA H100"}]', text)
    found = play(QUEUES + broken)
    assert isinstance(found, str)
    assert "gpus" in found
    assert "q.yaml" in found


def test_with_consolidation_a_small_workload_makes_room_for_a_whole_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 GiB on either GPU; 20 more on the one whose large one ends; then a whole GPU is requested."""
    (tmp_path / "all.yaml").write_text(QUEUES.replace("QUOTA", "100") + NODE)
    lines = [
        job(0, "first", 60, 20, runs_s=100),
        job(0, "second", 60, 20, runs_s=50_000),
        job(1, "little", 20, 20, runs_s=1000),
        job(200, "whole", 80, 100, runs_s=100),
    ]
    (tmp_path / "trace").write_text("\n".join(lines))
    words = ["simulate", "-f", str(tmp_path / "all.yaml"), "--trace", str(tmp_path / "trace")]
    assert main([*words, "-o", "json", "--consolidation", "3600"]) == 0
    found = json.loads(capsys.readouterr().out)
    waits = found["waits_s"]["a"]["p95"], found["without_moves"]["waits_s"]["a"]["p95"]
    assert found["moves"] == 1
    assert found["moved_s"] == 199
    assert waits == (0, 801), "without moves the little one has to end"
    assert main([*words, "--consolidation", "3600"]) == 0
    assert "moves: 1, 199 s of work done again" in capsys.readouterr().out
