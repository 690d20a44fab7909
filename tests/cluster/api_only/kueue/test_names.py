"""Every metric and every event of the real Kueue, read in its source, beside ours: what it has and we have not is named here, with
the reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queuecontroller.server.metrics import kueue_catalogue
from sluicecommon.metric import Kind
from tests.cluster.programs import build
from tests.cluster.programs.build import Unbuildable
from tests.kit.places import REPO

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

EVENTS = {
    "AdmissionCheckRejected": "Warning",
    "AdmissionCheckUpdated": "Normal",
    "Admitted": "Normal",
    "CreatedWorkload": "Normal",
    "Deleted": "Normal",
    "DeletedWorkload": "Normal",
    "ErrWorkloadCompose": "Warning",
    "ExcessPodDeleted": "Normal",
    "FailedCreate": "Warning",
    "FinishedWorkload": "Normal",
    "MaximumExecutionTimeExceeded": "Warning",
    "MultiKueue": "Normal",
    "OwnerReferencesAdded": "Normal",
    "Preempted": "Normal",
    "PreemptedWorkload": "Normal",
    "ProvisioningRequestCreated": "Normal",
    "QuotaReserved": "Normal",
    "Started": "Normal",
    "Stopped": "Normal",
    "UpdatedWorkload": "Normal",
    "WorkloadNameConflict": "Warning",
}
"""Event type by reason. Reasons that contain a condition's reason are compared separately:
`EvictedDueTo...`, and the reasons for waiting."""

NOT_TOLD = {
    "AdmissionGateCleared": "admission-gated-by is not there",
    "AdmissionGated": "admission-gated-by is not there",
    "CreatedVariant": "concurrent admission is not there",
    "DeletedVariant": "concurrent admission is not there",
    "ActivatedVariant": "concurrent admission is not there",
    "DeactivatedVariant": "concurrent admission is not there",
    "PreemptionUngatedVariant": "concurrent admission is not there",
    "DeprecatedPathUsage": "kubeconfig files are read from one directory only",
    "JobNestingTooDeep": "owners of owners are looked up to eight deep, and nobody is refused for more",
    "KueueForcefullyDeleted": "pods on nodes that are gone are Kubernetes' own to end",
    "PodTerminatedByKueue": "a pod on a tainted node is replaced with its node, and not marked failed",
    "SecondPassFailed": "there is no second pass: domains are given with the quota",
    "Suspended": "a job that belongs to another is held by what holds that",
    "UpdatedAdmissionCheck": "the check's words are told at its Workload, with AdmissionCheckUpdated",
}
BY_CONDITION = {"condReason", "eventReason", "reason"}
"""Variables of Kueue's that hold a reason of a condition."""


@pytest.fixture(scope="module")
def source() -> Path:
    try:
        return build.kueue_source()
    except Unbuildable as error:
        pytest.skip(str(error))


def test_metrics_are_kueues_in_name_kind_and_labels(source: Path) -> None:
    theirs: dict[tuple[str, str], frozenset[str]] = {}
    text = (source / "pkg" / "metrics" / "metrics.go").read_text()
    pattern = re.compile(
        r"prometheus\.New(Counter|Gauge|Histogram)Vec\(\s*prometheus\.\w+\{(.*?)\n\t+\},(.*?)\n\t\)",
        re.S,
    )
    for kind, options, labels in pattern.findall(text):
        system = re.search(r"Subsystem:\s+constants\.(\w+)Name", options)
        name = re.search(r'Name:\s+"(\w+)"', options)
        assert system is not None
        assert name is not None
        known = frozenset(re.findall(r'"(\w+)"', labels))
        theirs[f"{system[1].lower()}_{name[1]}", kind.lower()] = known
    assert len(theirs) == len(re.findall(r'\bName:\s+"', text)), "every metric of the file is read"
    (info,) = (one for one in theirs if one[0] == "kueue_build_info")
    theirs[info] = frozenset(re.findall(r'"(\w+)"', "".join(re.findall(r"buildInfo = .*?\n\t\)", text, re.S)))) - {"build_info"}  # fmt: skip
    ours = {
        (one.name + ("_total" if one.kind is Kind.COUNTER else ""), str(one.kind)): frozenset(one.labels)
        for one in kueue_catalogue.CATALOGUE
        if one not in kueue_catalogue.NEWER
    }  # fmt: skip
    assert ours == theirs


def test_every_event_of_kueue_is_told_or_named(source: Path) -> None:
    constants = {
        name: value
        for file in sorted(source.glob("pkg/**/*.go")) + sorted(source.glob("apis/kueue/v1beta2/*.go"))
        if not file.name.endswith("_test.go")
        for name, value in re.findall(r'^\s*(?:const\s+)?(\w+)\s*(?:StopReason|string)?\s*=\s*"(\w+)"', file.read_text(), re.M)
    }  # fmt: skip
    found: dict[str, str] = {}
    for file in sorted(source.glob("pkg/**/*.go")):
        if file.name.endswith("_test.go") or "testing" in file.parts:
            continue
        for kind, reason in re.findall(
            r"\.Eventf\(\s*[^;]*?corev1\.EventType(\w+),\s*([\w.\"]+)", file.read_text()
        ):
            name = reason.rpartition(".")[2]
            if name in BY_CONDITION:
                continue
            found[name.strip('"') if reason.startswith('"') else constants[name]] = kind
    assert len(found) > 30, "the source is read"
    missing = found.keys() - EVENTS.keys() - NOT_TOLD.keys()
    assert not missing, "neither told nor named"
    assert EVENTS.keys() - found.keys() == set(), "Kueue has no such event"
    assert NOT_TOLD.keys() - found.keys() == set(), "Kueue has no such event"
    assert {name: found[name] for name in EVENTS} == EVENTS
    code = "".join(one.read_text() for one in (REPO / "queuecontroller").rglob("*.py"))
    untold = [name for name in EVENTS if f'"{name}"' not in code]
    assert not untold
