"""Each verb of `kubectl sluice` is one run of kubectl, and what it writes our own reader takes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.cli.kubectl.main import main
from queuecontroller.cli.kubectl.plan import KINDS, Usage, make_parser, plan
from queuecontroller.cli.kubectl.tables import pending_lines, workload_lines
from queuecontroller.kueueapi.manifests.documents import load

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("stop wl train -n team", ("patch", "workloads.kueue.x-k8s.io", "train", "--type", "merge", "--patch", '{"spec": {"active": false}}', "--namespace", "team")),
        ("resume workload train", ("patch", "workloads.kueue.x-k8s.io", "train", "--type", "merge", "--patch", '{"spec": {"active": true}}')),
        ("stop cq a", ("patch", "clusterqueues.kueue.x-k8s.io", "a", "--type", "merge", "--patch", '{"spec": {"stopPolicy": "HoldAndDrain"}}')),
        ("stop cq a --keep-already-running", ("patch", "clusterqueues.kueue.x-k8s.io", "a", "--type", "merge", "--patch", '{"spec": {"stopPolicy": "Hold"}}')),
        ("resume lq q -n team --context there", ("patch", "localqueues.kueue.x-k8s.io", "q", "--type", "merge", "--patch", '{"spec": {"stopPolicy": "None"}}', "--namespace", "team", "--context", "there")),
        ("list rf", ("get", "resourceflavors.kueue.x-k8s.io")),
        ("list lq -A", ("get", "localqueues.kueue.x-k8s.io", "--all-namespaces")),
        ("list wl -n team", ("get", "workloads.kueue.x-k8s.io", "-o", "json", "--namespace", "team")),
        ("list wl -c a -A", ("get", "workloads.kueue.x-k8s.io,localqueues.kueue.x-k8s.io", "-o", "json", "--all-namespaces")),
        ("pending cq a", ("get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/a/pendingworkloads")),
        ("pending lq q -n team", ("get", "--raw", "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/q/pendingworkloads")),
        ("describe cq a", ("describe", "clusterqueues.kueue.x-k8s.io", "a")),
        ("get wl -A -o wide", ("get", "workloads.kueue.x-k8s.io", "-A", "-o", "wide")),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_a_verb_is_a_run_of_kubectl(words: str, expected: tuple[str, ...]) -> None:
    assert plan(words.split()).words == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "VERB"),
        ("stop node n", "unknown kind 'node'"),
        ("stop rf x", "cannot be stopped"),
        ("stop wl x --keep-already-running", "for clusterqueues"),
        ("stop wl x y", "unexpected argument 'y'"),
        ("stop wl", "NAME"),
        ("list cq --status pending", "for workloads"),
        ("pending wl x", "a workload has no pending workloads"),
        ("pending cq ../../secrets", "is not a valid object name"),
        ("pending cq a?watch=1", "is not a valid object name"),
        ("fly wl x", "invalid choice"),
        ("create cq a --nominal-quota h100", "is not FLAVOR:RESOURCE=AMOUNT"),
        ("create cq a --nominal-quota h100:cpu", "is not FLAVOR:RESOURCE=AMOUNT"),
        ("create cq a --nominal-quota h:cpu=1 --borrowing-limit h:memory=1Gi", "h:memory has no nominal"),
        ("create cq a --nominal-quota h:cpu=1;cpu=2", "h:cpu has two amounts"),
        ("create cq a --nominal-quota h:cpu=1,h:cpu=1", "h:cpu has two amounts"),
        ("list wl -o yaml", "kubectl sluice get wl"),
        ("list wl --output=json", "kubectl sluice get wl"),
        ("create rf a --node-labels x", "is not NAME=VALUE"),
        ("create rf a --node-taints x=y", "is not NAME=VALUE:EFFECT"),
        ("create lq a", "--clusterqueue"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_told(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Usage) as error:
        plan(words.split())
    assert said in str(error.value)
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


def test_what_is_created_our_reader_takes_and_has_its_quota() -> None:
    words = [
        "create rf h100 --node-labels gpu=h100 --node-taints gpu=h100:NoSchedule",
        "create cq a --cohort both --nominal-quota h100:cpu=9;memory=36Gi,a100:cpu=4;memory=8Gi"
        " --borrowing-limit h100:cpu=1 --lending-limit h100:cpu=2 --namespace-selector team=a",
        "create lq q -c a -n team",
    ]
    texts = [plan(one.split()).given for one in words]
    found = load({"made": "\n---\n".join(texts)})
    assert found.problems == []
    (queue,) = found.cluster_queues
    (group,) = queue.resource_groups
    assert [one.flavor for one in group.flavors] == ["h100", "a100"]
    (cpu, memory) = group.flavors[0].resources
    assert (cpu.nominal, cpu.borrowing_limit, cpu.lending_limit) == (9000, 1000, 2000)
    assert memory.nominal == 36 << 30
    assert queue.cohort == "both"
    (local,) = found.local_queues
    assert (local.namespace, local.cluster_queue) == ("team", "a")
    (flavor,) = found.flavors
    assert flavor.node_labels == {"gpu": "h100"}
    assert flavor.node_taints[0].effect == "NoSchedule"


def workload(name: str, *true: str, **spec: Any) -> dict[str, Any]:
    conditions = [{"type": one, "status": "True", "message": f"it is {one}"} for one in true]
    if not true:
        conditions = [{"type": "QuotaReserved", "status": "False", "message": "no\x1b[31m quota"}]
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "creationTimestamp": "2025-12-31T23:59:00Z",
        },
        "spec": {"queueName": "q", **spec},
        "status": {
            "conditions": conditions,
            "admission": {"clusterQueue": "a"} if "QuotaReserved" in true else None,
        },
    }


def test_workloads_are_listed_by_status_and_queue() -> None:
    answer = {
        "items": [
            workload("waits"),
            workload("runs", "QuotaReserved", "Admitted"),
            workload("done", "QuotaReserved", "Admitted", "Finished", queueName="other"),
        ]
    }

    def names(words: str) -> list[str]:
        options, _ = make_parser().parse_known_args(words.split())
        lines = workload_lines(answer, options, NOW)
        assert not any("\x1b" in line for line in lines)
        return [line.split()[1] for line in lines[1:]]

    assert names("list wl") == ["waits", "runs", "done"]
    assert names("list wl --status pending") == ["waits"]
    assert names("list wl --status admitted") == ["runs"]
    assert names("list wl -q other") == ["done"]
    assert names("list wl -c a") == ["runs", "done"]
    assert workload_lines({"items": None}, make_parser().parse_args(["list", "wl"]), NOW) == [
        "none"
    ]


def test_a_pending_workload_is_in_the_cluster_queue_of_its_local_queue() -> None:
    local = {
        "kind": "LocalQueue",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"clusterQueue": "a"},
    }
    moved = workload("moved", "QuotaReserved", "Admitted")
    moved["status"]["admission"] = {"clusterQueue": "b"}
    answer = {"items": [local, workload("waits"), workload("other", queueName="r"), moved]}
    options, _ = make_parser().parse_known_args(["list", "wl", "-c", "a", "--status", "pending"])
    (line,) = workload_lines(answer, options, NOW)[1:]
    assert line.split()[:5] == ["team", "waits", "q", "a", "pending"]
    options, _ = make_parser().parse_known_args(["list", "wl", "-c", "b"])
    assert [line.split()[1] for line in workload_lines(answer, options, NOW)[1:]] == ["moved"]


def test_a_decimal_amount_and_a_last_semicolon_are_taken() -> None:
    text = plan(["create", "cq", "a", "--nominal-quota", "h:cpu=1.5;memory=1.5Gi;"]).given
    (group,) = json.loads(text)["spec"]["resourceGroups"]
    assert [one["nominalQuota"] for one in group["flavors"][0]["resources"]] == ["1.5", "1.5Gi"]


def test_who_waits_is_listed_in_order_from_one() -> None:
    answer = {
        "items": [
            {"metadata": {"name": "x", "namespace": "t"}, "positionInClusterQueue": 0, "priority": 0, "localQueueName": "q"}
        ]
    }  # fmt: skip
    assert pending_lines(answer)[1].split() == ["1", "t", "x", "q", "0"]
    assert pending_lines({}) == ["no pending workloads"]


def test_the_end_of_kubectl_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text('#!/bin/sh\necho "$@"\ncat\nexit 7\n')
    fake.chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(fake))
    assert main(["create", "lq", "q", "-c", "a"]) == 7
    said = capfd.readouterr().out.splitlines()
    assert said[0] == "create -f -"
    assert json.loads(said[1])["kind"] == "LocalQueue"
    monkeypatch.setenv("KUBECTL", str(tmp_path / "none"))
    assert main(["list", "cq"]) == 69


def test_every_kind_has_a_word() -> None:
    for kind, words in KINDS.items():
        for word in (kind, *words, f"{words[0]}.kueue.x-k8s.io"):
            assert plan(["get", word]).words == ("get", f"{words[0]}.kueue.x-k8s.io")
