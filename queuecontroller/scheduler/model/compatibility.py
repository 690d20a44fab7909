"""Differences between the two lines of Kueue that the queue is compatible with.

One table, which the settings, the Configuration's feature gates and the documentation read.

Everything else is the same in both: the API's versions v1alpha2 and v1beta1 stay served, and what
the newer line refuses because it would run outside of quota is refused in both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Line(StrEnum):
    V0_19 = "0.19"
    V0_20 = "0.20"


class Feature(StrEnum):
    """Behaviour that a line has or lacks, by the name of Kueue's feature gate."""

    DEFAULT_CLASS = "WorkloadPriorityClassDefaulting"
    OWN_TIMEOUTS = "WorkloadLevelWaitForPodsReady"
    UNSCHEDULED = "WaitForPodsReadyUnscheduledTimeout"
    MAX_NOT_READY = "WaitForPodsReadyMaxNotReady"
    SEVERAL_NODES = "TASReplaceMultipleFailedNodes"
    DEPLOYMENT_UID = "DeploymentJobUIDLabel"
    UPGRADE_STRATEGY = "RayServiceValidateUpgradeStrategy"
    FAIR_FROM_RESERVATION = "AdmissionFairSharingAnchorAtQuotaReservation"
    EACH_NODE = "TASNodeFeasibilityForAllLevels"
    PARTIAL_SLICES = "TASPartialSlices"
    SPREADING = "TASTopologySpreading"
    DYNAMIC_QUOTA = "DynamicQuotaOrchestration"
    EXTENDED_RESOURCES = "KueueDRAIntegrationExtendedResource"
    FREE_DEVICES = "KueueDRADeviceFeasibility"
    ORCHESTRATED_PREEMPTION = "MultiKueueOrchestratedPreemption"


@dataclass(frozen=True, slots=True)
class Difference:
    feature: Feature
    text: str
    """The effect of the feature, as a sentence for the documentation."""
    lines: frozenset[Line] = frozenset({Line.V0_20})
    """Lines that have it by default."""


DIFFERENCES: Final = (
    Difference(
        Feature.DEFAULT_CLASS,
        "A new job without the label `kueue.x-k8s.io/priority-class` gets the WorkloadPriorityClass"
        " `default`, if there is one, whatever PriorityClass its pods name",
    ),
    Difference(
        Feature.OWN_TIMEOUTS,
        "The annotation `kueue.x-k8s.io/wait-for-pods-ready` of a job has its own timeouts, as"
        ' `{"timeoutSeconds": 30, "recoveryTimeoutSeconds": 40}`, up to'
        " `waitForPodsReady.maxTimeoutOnWorkload` (2 h); they count without the section, too",
    ),
    Difference(
        Feature.UNSCHEDULED,
        "`waitForPodsReady.unscheduledTimeout` counts",
    ),
    Difference(
        Feature.MAX_NOT_READY,
        "A pod group is ready although as many pods are not as the annotation"
        " `kueue.x-k8s.io/pod-group-max-not-ready-count` of all its pods allows",
    ),
    Difference(
        Feature.SEVERAL_NODES,
        "A Workload stays admitted when several nodes of its topology fail at once, each of which"
        " is replaced; without it the Workload is evicted",
    ),
    Difference(
        Feature.DEPLOYMENT_UID,
        "The label `kueue.x-k8s.io/job-uid` of a Deployment's Workloads is the Deployment's UID;"
        " without it the pod's",
    ),
    Difference(
        Feature.UPGRADE_STRATEGY,
        "A queued RayService that is not elastic has `spec.upgradeStrategy.type: None`: an upgrade"
        " by a second cluster would run outside of its quota",
    ),
    Difference(
        Feature.FAIR_FROM_RESERVATION,
        "With `admissionFairSharing` a LocalQueue's usage counts from the reservation of quota;"
        " without it from admission, so not while admission checks are pending",
    ),
    Difference(
        Feature.EACH_NODE,
        "Each pod has to fit on one node of its domain, where the lowest level of a Topology is not"
        " `kubernetes.io/hostname`; without it the domain's sums count",
    ),
    Difference(
        Feature.PARTIAL_SLICES,
        "The last slice of a pod set may have fewer pods than the others; without it such a"
        " Workload is pending",
        frozenset(Line),
    ),
    Difference(
        Feature.SPREADING,
        "The annotation `kueue.x-k8s.io/podset-topology-spreading` of a pod template limits the"
        " share of a service's pod sets that a domain may have before the next one is placed there",
    ),
    Difference(
        Feature.DYNAMIC_QUOTA,
        "DynamicQuotaOrchestrators distribute the capacity of CapacityProviders, and the quotas in"
        " `status.effectiveQuotas` of ClusterQueues and Cohorts count instead of those in `spec`",
        frozenset(),
    ),
    Difference(
        Feature.EXTENDED_RESOURCES,
        "What pods request of an extended resource that a DeviceClass names counts as the"
        " [devices](#claims) of that class; without it by the resource's own name",
        frozenset(Line),
    ),
    Difference(
        Feature.FREE_DEVICES,
        "Quota is reserved only where nodes have [free devices](#free-devices) for the claims of a"
        " Workload's pods",
        frozenset(),
    ),
    Difference(
        Feature.ORCHESTRATED_PREEMPTION,
        "A Workload with a closed preemption gate preempts nobody, and a MultiKueue manager opens"
        " that of one worker's copy at a time; without it gates have no effect",
    ),
)


def features_of(line: Line) -> frozenset[Feature]:
    """The features that a line has by default."""
    return frozenset(one.feature for one in DIFFERENCES if line in one.lines)


def as_markdown() -> str:
    """The table of the documentation."""
    rows = [f"| {' | '.join(('Feature gate', *Line, 'What it does'))} |", "|---|---|---|---|"]
    for one in DIFFERENCES:
        has = ("yes" if line in one.lines else "no" for line in Line)
        rows.append(f"| {' | '.join((f'`{one.feature}`', *has, one.text))} |")
    return "\n".join(rows) + "\n"
