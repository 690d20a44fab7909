"""Lint: each rule on the smallest case that breaks it, silence on what is right, the examples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from queuecontroller.cli.lint import Finding, Severity, lint
from queuecontroller.cli.lint.rules import RULES
from queuecontroller.cli.main import main
from queuecontroller.kueueapi.manifests.documents import load
from tests.queue.manifests.collected import FOLDER, SETS
from tests.queue.manifests.texts import GOOD


def found(text: str, file: str = "x.yaml") -> list[Finding]:
    return lint({file: text})


def test_nothing_is_said_of_what_is_right() -> None:
    assert found(GOOD) == []


@pytest.mark.parametrize(
    ("before", "after", "rule", "severity", "line", "object_", "part"),
    [
        ("nominalQuota: 4", "nominal: 4", "unreadable", "error", 13, "ClusterQueue/a", "nominalQuota"),
        ("v1beta1\nkind: LocalQueue", "v1alpha2\nkind: LocalQueue", "old-version", "warning", 15, "LocalQueue/team-a/main", "v1beta1"),
        ("spec:\n  namespaceSelector", "spec:\n  admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}\n  namespaceSelector", "admission-scope-without-effect", "warning", 10, "ClusterQueue/a", "no Configuration"),
        ("clusterQueue: a}", "clusterQueue: b}", "dangling", "warning", 18, "LocalQueue/team-a/main", "ClusterQueue b"),
        ("flavors: [{name: plain", "flavors: [{name: plane", "dangling", "warning", 13, "ClusterQueue/a", "did you mean plain?"),
        ("queue-name: main", "queue-name: mail", "dangling", "warning", 31, "Job/team-a/j", "did you mean team-a/main?"),
        ("labels: {team: a}", "labels: {team: b}", "namespace-never-matches", "error", 18, "LocalQueue/team-a/main", "team=b"),
        ("  namespaceSelector: {matchLabels: {team: a}}\n", "", "no-namespace-selector", "warning", 9, "ClusterQueue/a", "namespaceSelector"),
        ("[nvidia.com/gpu]", "[nvidia.com/gpu, cpu]", "omitted-resource", "warning", 13, "ClusterQueue/a", "unlimited"),
        ("labels: {pool: gpu}", "labels: {pool: cpu}", "no-node-for-flavor", "warning", 13, "ClusterQueue/a", "pool=gpu"),
        ("nominalQuota: 4", "nominalQuota: 9", "quota-beyond-nodes", "warning", 13, "ClusterQueue/a", "9 is more than the 8"),
        ("requests: {nvidia.com/gpu: 1}", "requests: {nvidia.com/gpu: 5}", "never-admitted", "error", 32, "Job/team-a/j", "nvidia.com/gpu of flavor plain were 5 instead of 4"),
    ],
)  # fmt: skip
def test_each_rule_finds_its_case(
    before: str, after: str, rule: str, severity: str, line: int, object_: str, part: str
) -> None:
    assert before in GOOD
    ours = [one for one in found(GOOD.replace(before, after, 1)) if one.rule == rule]
    assert len(ours) == 1
    (one,) = ours
    assert (str(one.severity), one.file, one.line, one.object) == (
        severity,
        "x.yaml",
        line,
        object_,
    )
    assert part in f"{one.text} {one.fix}"
    assert one.fix


@pytest.mark.parametrize(("half_life", "count"), [("0s", 2), ("168h", 0)])
def test_scopes_without_a_memory_are_told(half_life: str, count: int) -> None:
    scope = "admissionScope: {admissionMode: UsageBasedAdmissionFairSharing}"
    text = "\n---\n".join(
        (
            f"kind: Configuration\nadmissionFairSharing: {{usageHalfLifeTime: {half_life}}}",
            f"kind: Cohort\nmetadata: {{name: all}}\nspec: {{{scope}}}",
            f"kind: ClusterQueue\nmetadata: {{name: a}}\nspec: {{{scope}, namespaceSelector: {{}}}}",
        )
    )
    ours = [one for one in found(text) if one.rule == "admission-scope-without-effect"]
    assert len(ours) == count
    assert all("usageHalfLifeTime" in one.text for one in ours)


def test_a_circle_of_cohorts_is_told_once_for_each_of_it() -> None:
    text = "\n---\n".join(
        f"kind: Cohort\nmetadata: {{name: {name}}}\nspec: {{parentName: {parent}}}"
        for name, parent in (("a", "b"), ("b", "a"), ("c", "a"))
    )
    ours = [one for one in found(text) if one.rule == "cohort-cycle"]
    assert [one.object for one in ours] == ["Cohort/a", "Cohort/b"]
    assert "a -> b -> a" in ours[0].text


def test_what_is_given_twice_is_told_and_the_last_counts() -> None:
    wider = GOOD.split("---\n")[1].replace("nominalQuota: 4", "nominalQuota: 9")
    ours = lint({"a.yaml": GOOD, "b.yaml": wider})
    assert [(one.rule, one.file, one.line) for one in ours] == [
        ("duplicate", "a.yaml", 8),
        ("quota-beyond-nodes", "b.yaml", 8),
    ]
    assert "given again in b.yaml:1" in ours[0].text
    elsewhere = GOOD.replace("namespace: team-a}\nspec: {cl", "namespace: team-b}\nspec: {cl")
    assert not [one for one in found(elsewhere) if one.rule == "duplicate"]
    several = JOB_OF_ANY_NAME + "\n---\n" + JOB_OF_ANY_NAME
    made = load({"x.yaml": several})
    assert not made.replaced, "the API server makes up a name for each"
    assert [one.name for one in made.workloads] == ["job-j", "job-j-2"]


JOB_OF_ANY_NAME = """kind: Job
metadata: {generateName: j-, labels: {kueue.x-k8s.io/queue-name: q}}
spec: {template: {spec: {containers: []}}}"""


@pytest.mark.parametrize(
    ("before", "after", "line", "field"),
    [
        ("metadata: {name: a}", "metadata: [a]", 8, "metadata"),
        ("metadata: {name: plain}", "metadata: plain", 3, "metadata"),
        ("status: {allocatable: {nvidia.com/gpu: 8}}", "status: [8]", 27, "status"),
        ("metadata: {name: n, labels: {pool: gpu}}", "metadata: [n]", 26, "metadata"),
        ("labels: {team: a}}", "labels: [team]}", 22, "metadata.labels"),
        ("allocatable: {nvidia.com/gpu: 8}", "allocatable: {nvidia.com/gpu: x}", 27, "status.allocatable.nvidia.com/gpu"),
        ("requests: {nvidia.com/gpu: 1}", "requests: {nvidia.com/gpu: -1}", 34, "spec.template.spec.containers[0].resources.requests.nvidia.com/gpu"),
        ("nominalQuota: 4", "nominalQuota: -4", 13, "spec.resourceGroups[0].flavors[0].resources[0].nominalQuota"),
        ("  template:", "  parallelism: -1\n  template:", 33, "spec.parallelism"),
        ("spec: {clusterQueue: a}", "spec: {}", 18, "spec.clusterQueue"),
        ("spec: {clusterQueue: a}", "spec: {clusterQueue: a}\nspec: {}", 18, "spec"),
        ("kind: Namespace", "kind: 7", 20, "kind"),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_named_with_its_line(
    before: str, after: str, line: int, field: str
) -> None:
    assert before in GOOD
    ours = [one for one in found(GOOD.replace(before, after, 1)) if one.rule == "unreadable"]
    assert [(one.line, one.field) for one in ours] == [(line, field)]
    assert ours[0].text
    assert ours[0].fix


def test_items_of_a_list_are_read_one_by_one() -> None:
    text = """kind: List
items:
- 7
- kind: Cohort
  metadata:
    name: good
  spec:
    parent: 5
- [kind, Cohort]
- metadata: {name: no-kind}
"""
    ours = [(one.object, one.line, one.field) for one in found(text)]
    assert ours == [
        ("x.yaml", 3, "items[0]"),
        ("Cohort/good", 8, "spec.parent"),
        ("x.yaml", 9, "items[2]"),
        ("x.yaml", 10, "items[3]"),
    ]
    assert [one.field for one in found("kind: List\nitems: {a: b}")] == ["items"]
    assert found("kind: List\nitems: []") == []


@pytest.mark.parametrize(
    ("before", "after", "fix"),
    [
        ("labels: {team: a}", "labels: {team: b}", "it would start if namespace team-a had team=a among its labels, as the namespaceSelector of ClusterQueue a requires"),
        ("  namespaceSelector", "  stopPolicy: Hold\n  namespaceSelector", "it would start if ClusterQueue a were resumed: it is stopped, Hold (sluice-queue resume cq a)"),
        ("requests: {nvidia.com/gpu: 1}", "requests: {cpu: 1}", "it would start if ClusterQueue a covered cpu (or the workload did not request it, or resources.excludeResourcePrefixes left it out)"),
        ("spec: {clusterQueue: a}", "spec: {clusterQueue: a, stopPolicy: Hold}", "it would start if LocalQueue team-a/main were resumed: it is stopped, Hold (sluice-queue resume lq team-a/main)"),
    ],
)  # fmt: skip
def test_what_never_starts_says_what_would_help(before: str, after: str, fix: str) -> None:
    assert before in GOOD
    ours = [one for one in found(GOOD.replace(before, after, 1)) if one.rule == "never-admitted"]
    assert [one.fix for one in ours] == [fix]
    assert "not evaluated yet" not in ours[0].text


def test_the_two_flaws_of_the_owners_platform_are_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["lint", "-f", str(FOLDER / "research-and-production")]) == 1
    said = capsys.readouterr().out
    assert "LocalQueue/ai-production/production-queue" in said
    assert "nothing in this queue is ever admitted" in said
    assert "flavor gpu-a100-80gb gives no quota for nvidia.com/gpucores" in said
    assert "on this flavor it is unlimited" in said


WANTED = {
    "research-and-production": {
        "namespace-never-matches": 1,
        "never-admitted": 2,
        "no-node-for-flavor": 1,
        "omitted-resource": 1,
        "quota-beyond-nodes": 1,
    },
    "first-queue": {},
    "from-hami": {},
    "deployments-with-gpu-shares": {"no-namespace-selector": 1},
    "spot-and-on-demand": {"old-version": 1, "dangling": 2},
}


@pytest.mark.parametrize("folder", SETS, ids=lambda path: path.name)
def test_the_owners_folders_say_the_same_each_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["lint", "-f", str(folder), "-o", "json"])
    rows = json.loads(capsys.readouterr().out)
    assert status == int(any(row["severity"] == "error" for row in rows))
    assert all(row["file"] and row["line"] and row["object"] and row["fix"] for row in rows)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["rule"]] = counts.get(row["rule"], 0) + 1
    if folder.name in WANTED:
        assert counts == WANTED[folder.name]


def test_every_rule_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "queue" / "manifests.md").read_text()
    assert len(RULES) == 11
    rules = (
        *(
            "unreadable",
            "duplicate",
            "old-version",
            "dangling",
            "cohort-cycle",
            "namespace-never-matches",
        ),
        *("no-namespace-selector", "omitted-resource", "no-node-for-flavor"),
        *("quota-beyond-nodes", "never-admitted", "admission-scope-without-effect"),
    )
    for rule in rules:
        assert f"`{rule}`" in page
    assert {str(one) for one in Severity} == {"error", "warning"}


def test_a_deployment_has_one_finding_for_all_its_replicas() -> None:
    start = GOOD.index("kind: Job")
    before = GOOD[:start].rpartition("apiVersion")[0]
    container = "{name: c, image: none, resources: {requests: {nvidia.com/gpu: 5}}}"
    text = (
        f"{before}apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: d\n  namespace: team-a\n"
        "  labels: {kueue.x-k8s.io/queue-name: main}\nspec:\n  replicas: 7\n"
        "  selector: {matchLabels: {app: d}}\n  template:\n"
        "    metadata: {labels: {app: d, kueue.x-k8s.io/queue-name: main}}\n"
        f"    spec: {{containers: [{container}]}}\n"
    )
    (one,) = [each for each in found(text) if each.rule == "never-admitted"]
    assert one.object == "Deployment/team-a/d"


CHECK = """apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: shares}
spec: {controllerName: sluice.dev/placement}
"""


@pytest.mark.parametrize("name", ["shares", "share"])
def test_an_admission_check_that_is_not_there_is_told(name: str) -> None:
    queue = (
        "kind: ClusterQueue\nmetadata: {name: a}\nspec:\n  namespaceSelector: {}\n"
        f"  admissionChecksStrategy: {{admissionChecks: [{{name: {name}}}]}}\n"
    )
    ours = [one for one in found(f"{CHECK}---\n{queue}") if one.rule == "dangling"]
    assert [(one.text, one.fix) for one in ours] == (
        []
        if name == "shares"
        else [("AdmissionCheck share is not among these manifests", "did you mean shares?")]
    )
