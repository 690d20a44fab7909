"""`sluice-queue simulate`: the examples, traces, and the same answer each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuecontroller.cli.main import main
from queuecontroller.cli.simulate.trace import NS_PER_S, TraceError, by_chance, read_trace
from queuecontroller.scheduler.model.objects import LocalQueue
from tests.queue.manifests.collected import FOLDER, SETS

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


def test_the_owners_shares_are_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    found = simulate(capsys, "-f", FOLDER / "deployments-with-gpu-shares")
    assert found["used"] == {
        "hami-queue": {
            "nvidia.com/gpu": 4,
            "nvidia.com/total-gpucores": 160,
            "nvidia.com/total-gpumem": 4096,
        }
    }
    assert found["pending"] == {}
    strict = simulate(capsys, "-f", FOLDER / "deployments-with-gpu-shares", "--strict-selectors")
    assert strict["used"] == {"hami-queue": {}}, "as Kueue takes a missing selector"


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
        ("{", "line 1: is not JSON"),
        ("\n[1]", "line 2: expected an object"),
        ('{"at_s": 1, "queue": "a/b"}', "requests is missing"),
        (line(0, "x", at="1"), "unknown field 'at' (known: at_s,"),
        (line(-1, "x"), "at_s: expected a time from 0 to 31536000 seconds, got -1"),
        (line(0, "x", count=0), "count: expected a whole number from 1 to 2147483647, got 0"),
        (line(0, "x", queue="main"), "queue: 'main' is not NAMESPACE/QUEUE"),
        (line(0, "x", requests={"cpu": "1 Gi"}), "requests: "),
        (line(0, "x", priority=True), "got true"),
        (line(float("nan"), "x"), "at_s: expected a time from 0 to 31536000 seconds, got NaN"),
        (line(float("inf"), "x"), "seconds, got Infinity"),
        (line(0, "x").replace('"at_s": 0', '"at_s": 1e400'), "seconds, got Infinity"),
        (line(0, "x").replace('"at_s": 0', '"at_s": ' + "9" * 5000), "thousands of digits"),
        (line(31_536_001, "x"), "at_s: expected a time from 0 to 31536000 seconds, got 31536001"),
        (line(0, "x", runs_s=float("nan")), "seconds, got NaN"),
        (
            line(0, "x", gpus=-1),
            "requests: nvidia.com/gpu: expected a quantity of 0 or more, got -1",
        ),
        (line(0, "x", requests={"": 1}), "requests: : expected a quantity of 0 or more, got 1"),
        (
            line(0, "x", count=1 << 31),
            "count: expected a whole number from 1 to 2147483647, got 2147483648",
        ),
        (line(0, "x", queue="a/b/c"), "queue: 'a/b/c' is not NAMESPACE/QUEUE"),
        (line(0, "x", queue=7), "queue: expected a string, got 7"),
        (line(0, "a/b"), "name: 'a/b' has a /"),
        (
            line(0, "x").replace('"name": "x"', '"name": ["x"]'),
            'name: expected a string, got ["x"]',
        ),
        ("[" * 100_000, "line 1: is nested too deep"),
        ('{"at_s": 0, "at_s": 1}', "'at_s' is given twice"),
        (
            "# one\n" + line(0, "x") + "\n" + line(1, "x"),
            "line 3: name: team/x is already on line 2",
        ),
        (line(0, "taken"), "line 1: name: team/taken is already among the manifests"),
    ],
)
def test_a_bad_line_is_named_with_its_field(text: str, what: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(text, {"team/taken"})
    assert what in str(caught.value)


SHARED = """
---
kind: LocalQueue
metadata: {name: other, namespace: team}
spec: {clusterQueue: a}
---
kind: Configuration
admissionFairSharing: {usageHalfLifeTime: 1h}
"""


@pytest.mark.parametrize(("scope", "last_s"), [("", 179), ("UsageBasedAdmissionFairSharing", 180)])
def test_admission_fair_sharing_is_played(
    scope: str, last_s: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three jobs of one queue, and one of another's a second later: it is last, or second."""
    text = QUEUES.replace("nominalQuota: 2", "nominalQuota: 1") + SHARED
    if scope:
        text = text.replace(
            "  preemption:", f"  admissionScope: {{admissionMode: {scope}}}\n  preemption:"
        )
    (tmp_path / "all.yaml").write_text(text)
    (tmp_path / "trace").write_text(
        "\n".join([*(line(0, f"a{n}") for n in range(3)), line(1, "b", queue="team/other")])
    )
    found = simulate(capsys, "-f", tmp_path / "all.yaml", "--trace", tmp_path / "trace")
    assert found["waits_s"] == {"a": {"count": 4, "p50": 120, "p95": last_s}}
    assert found["ended_s"] == 240, "nothing is played for the sake of histories"


def test_a_name_that_is_made_up_is_nobodys() -> None:
    given = line(0, "line-2")
    unnamed = json.dumps({"at_s": 0, "queue": "team/main", "requests": {"nvidia.com/gpu": "1"}})
    found = read_trace("\n".join([given, unnamed, unnamed]), {"team/line-3"})
    assert [one.name for one in found] == ["line-2", "line-2-1", "line-3-1"]
    elsewhere = line(0, "line-2", queue="other/main")
    assert len(read_trace("\n".join([given, elsewhere]))) == 2
    made = by_chance(7, [LocalQueue("n", "q", "a")], {"a": ["cpu"]}, 2, {"n/chance-1"})
    assert [one.name for one in made] == ["chance-0", "chance-1-1"]


def test_what_nobody_looks_at_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = """
---
kind: Job
metadata: {name: j, namespace: team, labels: {kueue.x-k8s.io/queue-name: main}}
spec: {template: {spec: {containers: [{resources: {requests: {nvidia.com/gpu: 1}}}]}}}
"""
    held = tmp_path / "held.yaml"
    held.write_text(
        QUEUES.replace("  namespaceSelector", "  stopPolicy: Hold\n  namespaceSelector") + job
    )
    found = simulate(capsys, "-f", held)
    assert found["pending"] == {"team/job-j": "ClusterQueue a is inactive: it is stopped (Hold)"}
    circle = tmp_path / "circle.yaml"
    circle.write_text(
        QUEUES.replace("  namespaceSelector", "  cohort: x\n  namespaceSelector")
        + job
        + "---\nkind: Cohort\nmetadata: {name: x}\nspec: {parentName: y}\n"
        + "---\nkind: Cohort\nmetadata: {name: y}\nspec: {parentName: x}\n"
    )
    found = simulate(capsys, "-f", circle)
    assert "its own ancestor" in found["pending"]["team/job-j"]  # type: ignore[index]


def test_what_is_played_otherwise_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checked = QUEUES.replace("  preemption", "  admissionChecks: [license, budget]\n  preemption")
    (tmp_path / "q.yaml").write_text(checked)
    again = QUEUES.split("---")[0]
    (tmp_path / "r.yaml").write_text(again)
    found = simulate(capsys, "-f", tmp_path)
    assert found["notes"] == [
        "ClusterQueue a requires admission checks (license, budget): assumed to pass at once",
        f"ResourceFlavor/plain of {tmp_path}/q.yaml:2 is ignored: it is given again in"
        f" {tmp_path}/r.yaml:2",
    ]


@pytest.mark.parametrize("jobs", ["-1", "1.5", "x", "1000001", "", "9" * 5000])
def test_jobs_are_a_count(jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["simulate", "-f", str(tmp_path), f"--jobs={jobs}"])
    assert caught.value.code == 2
    assert "expected a whole number from 0 to 1000000, got " in capsys.readouterr().err


def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.yaml").write_bytes(b"kind: x\n\xff\n")
    assert main(["simulate", "-f", str(tmp_path)]) == 2
    assert f"{tmp_path}/q.yaml:2: is not UTF-8" in capsys.readouterr().err
    (tmp_path / "q.yaml").write_text(QUEUES)
    (tmp_path / "t.jsonl").write_text(line(0, "x") + "\n{")
    trace = str(tmp_path / "t.jsonl")
    assert main(["simulate", "-f", str(tmp_path), "--trace", trace]) == 2
    assert f"{trace}: line 2: is not JSON" in capsys.readouterr().err
    assert main(["simulate", "-f", str(tmp_path), "--trace", str(tmp_path / "none")]) == 2
    assert "none: No such file" in capsys.readouterr().err


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
    assert "no .yaml, .yml, .json files" in capsys.readouterr().err
    assert main([verb, "-f", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml" in capsys.readouterr().err
