"""`sluice-queue simulate`: the owner's manifests, traces, and the same answer each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuecontroller.cli.main import main
from queuecontroller.engine.model import LocalQueue
from queuecontroller.simulate.trace import NS_PER_S, TraceError, by_chance, read_trace

from .test_manifests import FOLDER, SETS, needs_manifests

QUEUES = """
kind: ResourceFlavor
metadata: {name: plain}
---
kind: ClusterQueue
metadata: {name: a}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: plain, resources: [{name: nvidia.com/gpu, nominalQuota: 2}]}]
---
kind: LocalQueue
metadata: {name: main, namespace: team}
spec: {clusterQueue: a}
"""


def simulate(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> dict[str, object]:
    assert main(["simulate", "-o", "json", *map(str, arguments)]) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def line(at_s: float, name: str, gpus: int = 1, **more: object) -> str:
    given = {"at_s": at_s, "queue": "team/main", "name": name, "requests": {"nvidia.com/gpu": gpus}}
    return json.dumps({**given, **more})


@needs_manifests
def test_the_owners_shares_are_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, "-f", FOLDER / "hami-kueue")
    assert found["used"] == {
        "hami-queue": {
            "nvidia.com/gpu": 4,
            "nvidia.com/total-gpucores": 160,
            "nvidia.com/total-gpumem": 4096,
        }
    }
    assert found["pending"] == {}
    strict = simulate(capsys, "-f", FOLDER / "hami-kueue", "--strict-selectors")
    assert strict["used"] == {"hami-queue": {}}, "as Kueue takes a missing selector"


@needs_manifests
@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_every_set_of_the_owner_can_be_played(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = simulate(capsys, "-f", folder, "--jobs", "30", "--seed", "5")
    again = simulate(capsys, "-f", folder, "--jobs", "30", "--seed", "5")
    assert found == again
    other = simulate(capsys, "-f", folder, "--jobs", "30", "--seed", "6")
    assert (other == found) is (found["finished"] == 0), "another seed, other arrivals"


def test_a_trace_waits_is_preempted_and_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.yaml").write_text(QUEUES)
    (tmp_path / "t.jsonl").write_text(
        "\n".join(
            [
                "# two at once, a third waits, an important one takes a place",
                line(0, "first", runs_s=100),
                line(1, "second", runs_s=100),
                line(2, "third", runs_s=10),
                line(50, "important", priority=9, runs_s=20),
                line(60, "huge", gpus=3),
            ]
        )
    )
    found = simulate(capsys, "-f", tmp_path / "q.yaml", "--trace", tmp_path / "t.jsonl")
    assert found["preemptions"] == 1
    assert found["finished"] == 4
    assert list(found["pending"]) == ["team/huge"]  # type: ignore[call-overload]
    assert found["used"] == {"a": {}}
    assert found["waits_s"]["a"]["count"] == 4  # type: ignore[index]
    utilization = found["utilization"]["a"]["nvidia.com/gpu"]  # type: ignore[index]
    assert 0.7 < utilization <= 1
    assert (
        main(["simulate", "-f", str(tmp_path / "q.yaml"), "--trace", str(tmp_path / "t.jsonl")])
        == 0
    )
    assert "team/huge: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "line 1: is no JSON"),
        ("\n[1]", "line 2: is not an object"),
        ('{"at_s": 1, "queue": "a/b"}', "requests is missing"),
        (line(0, "x", at="1"), "unknown field at"),
        (line(-1, "x"), "at_s: -1 is no time"),
        (line(0, "x", count=0), "count: 0 is no whole number from 1"),
        (line(0, "x", queue="main"), "queue: 'main' is not NAMESPACE/QUEUE"),
        (line(0, "x", requests={"cpu": "1 Gi"}), "requests: "),
        (line(0, "x", priority=True), "priority: True"),
    ],
)
def test_a_bad_line_is_named_with_its_field(text: str, what: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(text)
    assert what in str(caught.value)


def test_chance_is_the_seeds() -> None:
    queues = [LocalQueue("n", "q", "a"), LocalQueue("n", "closed", "nothing")]
    covered = {"a": ["cpu"]}
    made = by_chance(7, queues, covered, 100)
    assert made == by_chance(7, queues, covered, 100)
    assert made != by_chance(8, queues, covered, 100)
    assert {one.queue for one in made} == {"q"}
    assert made == sorted(made, key=lambda one: one.at_ns)
    assert 200 * NS_PER_S < made[-1].at_ns < 1200 * NS_PER_S


@pytest.mark.parametrize("verb", ["simulate", "lint"])
def test_what_is_not_there_is_named(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, "-f", str(tmp_path)]) == 2
    assert "no .yaml files" in capsys.readouterr().err
    assert main([verb, "-f", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
