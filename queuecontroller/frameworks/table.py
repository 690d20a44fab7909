"""The job frameworks that Kueue supports, in one table: the fields of each that queueing needs.

A row names the field that suspends a kind, its pod templates and their counts (slots.py reads
them), and the parts of its status that mean ready, active or finished (state.py). Kinds that fit no
row are in code: pods and their groups (pods.py), and controllers whose pods are queued by
themselves (serving.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from queuecontroller.frameworks.patches import Path
from sluicecommon.reader import ManifestError, Problem, shown


@dataclass(frozen=True, slots=True)
class OneTemplate:
    """A Job: `parallelism` pods of one template, no more than `completions`."""

    job: Path = ("spec",)


@dataclass(frozen=True, slots=True)
class ReplicaSpecs:
    """Kubeflow: a mapping from role to replicas and template; only these roles count, in this
    order."""

    at: Path
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicatedJobs:
    """JobSet: a list of Jobs, each so many times."""

    at: Path = ("spec", "replicatedJobs")


@dataclass(frozen=True, slots=True)
class RayGroups:
    """Ray: a head and groups of workers; a RayJob's submitter besides."""

    at: Path
    submitter: bool = False


@dataclass(frozen=True, slots=True)
class Components:
    """AppWrapper: objects of any kind, with declared or known pod templates in them. What is added
    at the start has a place of its own."""

    at: Path = ("spec", "components")


@dataclass(frozen=True, slots=True)
class Roles:
    """SparkApplication: a driver and executors, whose pods are made of its own fields."""


@dataclass(frozen=True, slots=True)
class OfRuntime:
    """TrainJob: a JobSet that its runtime, another object, defines."""


@dataclass(frozen=True, slots=True)
class OnePod:
    """A Pod, or a controller with one template whose pods are queued by themselves."""

    pod: Path = ()


Shape: TypeAlias = (
    OneTemplate
    | ReplicaSpecs
    | ReplicatedJobs
    | RayGroups
    | Components
    | Roles
    | OfRuntime
    | OnePod
)


@dataclass(frozen=True, slots=True)
class Is:
    """A text in the status is one of these."""

    at: Path
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holds:
    """One of these conditions is True."""

    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Denies:
    """One of these conditions is False."""

    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Either:
    tests: tuple[Test, ...]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers in the status add up to more than 0: at a path, or of every entry under it."""

    at: Path
    names: tuple[str, ...]
    each: bool = False


@dataclass(frozen=True, slots=True)
class AllPods:
    """True if as many pods as the job has are ready or done."""


@dataclass(frozen=True, slots=True)
class AllJobs:
    """True if as many Jobs as there are replicas are ready or done, by entries under a path."""

    at: Path


@dataclass(frozen=True, slots=True)
class AllExecutors:
    """True if the Spark application runs, and every requested executor does."""


Test: TypeAlias = Is | Holds | Denies | Either | Counts | AllPods | AllJobs | AllExecutors


class Holding(Enum):
    """Mechanism that keeps pods from running until their Workload is admitted."""

    SUSPEND = auto()
    """The object has a field for it."""
    GATE = auto()
    """A scheduling gate of each pod; stopped pods are deleted."""
    PODS = auto()
    """The object is never stopped: its pods are queued one by one, or as groups."""


@dataclass(frozen=True, slots=True)
class Framework:
    name: str
    """Name in `integrations.frameworks` of Kueue's Configuration."""
    group: str
    versions: tuple[str, ...]
    """The first is the one to watch."""
    kind: str
    plural: str
    pods: Shape
    suspend: Path = ()
    holding: Holding = Holding.SUSPEND
    managed_by: Path = ()
    """Field that names the controller in charge, where it is not the kind's own; empty: there is
    none."""
    priority_class: tuple[Path, ...] = ()
    """Fields with a PriorityClass besides the pod templates: the first one set counts."""
    succeeded: Test | None = None
    failed: Test | None = None
    not_yet_failed: Test | None = None
    """While this is true the job is still cleaning up, even if `failed` is true."""
    message: Path = ()
    """Field with the message, where no condition has one."""
    ready: Test | None = None
    active: Test | None = None
    """Test if it has pods, by its status."""
    pods_label: str = ""
    """Label of its pods with its name as value, for kinds whose status does not count pods that
    terminate."""
    pods_by_workload: bool = False
    """The same for kinds whose pods have no such label: their annotation with the Workload's name
    is read."""
    fixed_while_running: bool = False
    """True if its pod templates cannot be changed by the write that suspends it, nor before its
    status states that it has stopped."""
    fixed_at_start: bool = False
    """True if its pod templates cannot be changed by the write that unsuspends it."""
    elastic: bool = False
    """True if it may grow by Workload slices: its pods are gated one by one."""

    @property
    def api_versions(self) -> tuple[str, ...]:
        return tuple(f"{self.group}/{one}" if self.group else one for one in self.versions)


_SPEC_SUSPEND: Final = ("spec", "suspend")
_SPEC_MANAGED: Final = ("spec", "managedBy")
_POLICY: Final = ("spec", "runPolicy")


def _kubeflow(
    kind: str, specs: str, roles: tuple[str, ...], versions: tuple[str, ...] = ("v1",)
) -> Framework:
    """Kubeflow's training operator has one form for all."""
    return Framework(
        name=f"kubeflow.org/{kind.lower()}",
        group="kubeflow.org",
        versions=versions,
        kind=kind,
        plural=f"{kind.lower()}s",
        pods=ReplicaSpecs(("spec", specs), roles),
        suspend=(*_POLICY, "suspend"),
        managed_by=(*_POLICY, "managedBy"),
        priority_class=((*_POLICY, "schedulingPolicy", "priorityClass"),),
        succeeded=Holds(("Succeeded",)),
        failed=Holds(("Failed",)),
        ready=Holds(("Running",)),
        active=Counts(("status", "replicaStatuses"), ("active",), each=True),
        pods_label="training.kubeflow.org/job-name",
    )


FRAMEWORKS: Final[tuple[Framework, ...]] = (
    Framework(
        name="batch/job",
        group="batch",
        versions=("v1",),
        kind="Job",
        plural="jobs",
        pods=OneTemplate(),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        succeeded=Holds(("Complete",)),
        failed=Holds(("Failed",)),
        ready=AllPods(),
        active=Counts(("status",), ("active", "terminating")),
        fixed_while_running=True,
        elastic=True,
    ),
    Framework(
        name="jobset.x-k8s.io/jobset",
        group="jobset.x-k8s.io",
        versions=("v1alpha2",),
        kind="JobSet",
        plural="jobsets",
        pods=ReplicatedJobs(),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        succeeded=Holds(("Completed",)),
        failed=Holds(("Failed",)),
        ready=AllJobs(("status", "replicatedJobsStatus")),
        active=Counts(("status", "replicatedJobsStatus"), ("active",), each=True),
    ),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker")),
    _kubeflow("TFJob", "tfReplicaSpecs", ("Chief", "Master", "PS", "Worker", "Evaluator")),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs", ("Master", "Worker")),
    _kubeflow("PaddleJob", "paddleReplicaSpecs", ("Master", "Worker")),
    _kubeflow("JAXJob", "jaxReplicaSpecs", ("Worker",)),
    _kubeflow("MPIJob", "mpiReplicaSpecs", ("Launcher", "Worker"), ("v2beta1", "v1")),
    Framework(
        name="trainer.kubeflow.org/trainjob",
        group="trainer.kubeflow.org",
        versions=("v1alpha1",),
        kind="TrainJob",
        plural="trainjobs",
        pods=OfRuntime(),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        succeeded=Holds(("Complete",)),
        failed=Holds(("Failed",)),
        ready=AllJobs(("status", "jobsStatus")),
        active=Counts(("status", "jobsStatus"), ("active",), each=True),
        fixed_while_running=True,
        fixed_at_start=True,
    ),
    Framework(
        name="ray.io/rayjob",
        group="ray.io",
        versions=("v1",),
        kind="RayJob",
        plural="rayjobs",
        pods=RayGroups(("spec", "rayClusterSpec"), submitter=True),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        succeeded=Is(("status", "jobDeploymentStatus"), ("Complete",)),
        failed=Is(("status", "jobDeploymentStatus"), ("Failed", "ValidationFailed")),
        message=("status", "message"),
        ready=Is(("status", "rayClusterStatus", "state"), ("ready",)),
        active=Is(
            ("status", "jobDeploymentStatus"),
            ("Initializing", "Running", "Waiting", "Retrying", "Suspending"),
        ),
        pods_by_workload=True,
        elastic=True,
    ),
    Framework(
        name="ray.io/raycluster",
        group="ray.io",
        versions=("v1",),
        kind="RayCluster",
        plural="rayclusters",
        pods=RayGroups(("spec",)),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        ready=Is(("status", "state"), ("ready",)),
        active=Either((Denies(("RayClusterSuspended",)), Is(("status", "state"), ("ready",)))),
        elastic=True,
    ),
    Framework(
        name="ray.io/rayservice",
        group="ray.io",
        versions=("v1",),
        kind="RayService",
        plural="rayservices",
        pods=RayGroups(("spec", "rayClusterConfig")),
        suspend=("spec", "rayClusterConfig", "suspend"),
        managed_by=_SPEC_MANAGED,
        ready=Holds(("Ready",)),
        active=Holds(("Ready",)),
        pods_by_workload=True,
        elastic=True,
    ),
    Framework(
        name="workload.codeflare.dev/appwrapper",
        group="workload.codeflare.dev",
        versions=("v1beta2",),
        kind="AppWrapper",
        plural="appwrappers",
        pods=Components(),
        suspend=_SPEC_SUSPEND,
        managed_by=_SPEC_MANAGED,
        succeeded=Is(("status", "phase"), ("Succeeded",)),
        failed=Is(("status", "phase"), ("Failed",)),
        not_yet_failed=Holds(("ResourcesDeployed",)),
        ready=Holds(("PodsReady",)),
        active=Holds(("QuotaReserved",)),
    ),
    Framework(
        name="sparkoperator.k8s.io/sparkapplication",
        group="sparkoperator.k8s.io",
        versions=("v1beta2",),
        kind="SparkApplication",
        plural="sparkapplications",
        pods=Roles(),
        suspend=_SPEC_SUSPEND,
        succeeded=Is(("status", "applicationState", "state"), ("COMPLETED",)),
        # After SUBMISSION_FAILED the operator tries again, or goes on to FAILED.
        failed=Is(("status", "applicationState", "state"), ("FAILED",)),
        message=("status", "applicationState", "errorMessage"),
        ready=AllExecutors(),
        active=Is(("status", "applicationState", "state"), ("RUNNING", "SUBMITTED")),
    ),
    Framework(
        name="pod",
        group="",
        versions=("v1",),
        kind="Pod",
        plural="pods",
        pods=OnePod(),
        holding=Holding.GATE,
        succeeded=Is(("status", "phase"), ("Succeeded",)),
        failed=Is(("status", "phase"), ("Failed",)),
        message=("status", "message"),
        ready=Holds(("Ready",)),
    ),
    Framework(
        name="deployment",
        group="apps",
        versions=("v1",),
        kind="Deployment",
        plural="deployments",
        pods=OnePod(("spec", "template")),
        holding=Holding.PODS,
    ),
    Framework(
        name="statefulset",
        group="apps",
        versions=("v1",),
        kind="StatefulSet",
        plural="statefulsets",
        pods=OnePod(("spec", "template")),
        holding=Holding.PODS,
    ),
    Framework(
        name="leaderworkerset.x-k8s.io/leaderworkerset",
        group="leaderworkerset.x-k8s.io",
        versions=("v1",),
        kind="LeaderWorkerSet",
        plural="leaderworkersets",
        pods=OnePod(("spec", "leaderWorkerTemplate", "workerTemplate")),
        holding=Holding.PODS,
    ),
)

_BY_NAME: Final = MappingProxyType({one.name: one for one in FRAMEWORKS})
_BY_TYPE: Final = MappingProxyType(
    {(version, one.kind): one for one in FRAMEWORKS for version in one.api_versions}
)


BY_KIND: Final = MappingProxyType({one.kind: one for one in FRAMEWORKS})
"""Frameworks by kind, for documents without an apiVersion, which files for the service alone may
omit."""


def frameworks() -> Sequence[Framework]:
    return FRAMEWORKS


def framework_named(name: str) -> Framework | None:
    return _BY_NAME.get(name)


def framework_of(document: object) -> Framework | None:
    """The framework of a document by its apiVersion and kind; None: it is not supported."""
    if not isinstance(document, Mapping):
        return None
    return framework_for(document.get("apiVersion"), document.get("kind"))


@dataclass(frozen=True, slots=True)
class External:
    """A kind whose own controller makes Workloads for it: the jobs and pods it owns are not queued
    a second time."""

    group: str
    kind: str


def external_frameworks(names: Sequence[str], path: str) -> tuple[External, ...]:
    """External frameworks from `integrations.externalFrameworks`, as Kind.version.group. Raises
    ManifestError."""
    found, problems = [], []
    for i, name in enumerate(names):
        kind, _, rest = name.partition(".")
        version, _, group = rest.partition(".")
        if kind[:1].isupper() and version[:1] == "v" and group:
            found.append(External(group, kind))
        else:
            what = f"{shown(name)} is not of the form Kind.version.group"
            problems.append(Problem(f"{path}[{i}]", what, "write one such as Job.v1.batch"))
    if problems:
        raise ManifestError(problems)
    return tuple(found)


def queues_its_own(owner: Mapping[str, Any], external: Collection[External] = ()) -> bool:
    """True if the kind of an owner reference may be queued itself: its pods and jobs then follow
    it."""
    api_version, kind = owner.get("apiVersion"), owner.get("kind")
    if framework_for(api_version, kind) is not None:
        return True
    group = api_version.rpartition("/")[0] if isinstance(api_version, str) else ""
    return any((one.group, one.kind) == (group, kind) for one in external)


def framework_for(api_version: Any, kind: Any) -> Framework | None:
    if isinstance(api_version, str) and isinstance(kind, str):
        return _BY_TYPE.get((api_version, kind))
    return None
