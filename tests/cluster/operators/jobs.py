"""One job of each kind that an operator runs, with what it comes to: pods, CPUs, Workloads, and which of its pods end it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.cluster.operators.lab import QUEUE

Document = dict[str, Any]
EVERY: Final[Callable[[Document], bool]] = lambda pod: True  # noqa: E731


@dataclass(frozen=True)
class Case:
    operator: str
    plural: str
    document: Document
    pods: int
    cpus: int
    done: Callable[[Document], bool] | None = EVERY
    """Which pods end for it to be done; None: it is never done."""
    workloads: int = 1
    before: tuple[tuple[str, Document], ...] = ()
    """Objects that it needs, each with the path to create it at."""

    @property
    def name(self) -> str:
        return str(self.document["kind"])

    @property
    def path(self) -> str:
        return f"/apis/{self.document['apiVersion']}/namespaces/default/{self.plural}"


def pod(name: str = "main", cpu: str = "1", **spec: Any) -> Document:
    container = {"name": name, "image": "none", "resources": {"requests": {"cpu": cpu}}}
    return {"spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec}}


def once(name: str = "main", cpu: str = "1") -> Document:
    return pod(name, cpu, restartPolicy="Never")


def queued(version: str, kind: str, spec: Document, **head: Any) -> Document:
    labels = {"kueue.x-k8s.io/queue-name": QUEUE}
    head = {"name": "sample", "namespace": "default", "labels": labels, **head}
    return {"apiVersion": version, "kind": kind, "metadata": head, "spec": spec}


def jobset() -> Document:
    def replicated(name: str, replicas: int, pods: int) -> Document:
        spec = {"parallelism": pods, "completions": pods, "template": once(name)}
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    jobs = [replicated("driver", 1, 1), replicated("workers", 2, 2)]
    return queued("jobset.x-k8s.io/v1alpha2", "JobSet", {"replicatedJobs": jobs})


def leader_worker_set(replicas: int = 2, size: int = 3, leader: str = "") -> Document:
    template = {"size": size, "workerTemplate": pod("worker")}
    if leader:
        template["leaderTemplate"] = pod("leader", leader)
    spec = {"replicas": replicas, "leaderWorkerTemplate": template}
    return queued("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec)


def kubeflow(kind: str, field: str, roles: dict[str, tuple[str, int]]) -> Document:
    """`roles`: container's name and replicas."""
    replicas = {
        role: {"replicas": count, "restartPolicy": "Never", "template": once(name)}
        for role, (name, count) in roles.items()
    }
    return queued("kubeflow.org/v1", kind, {field: replicas})


def mpi() -> Document:
    replicas = {
        "Launcher": {"replicas": 1, "template": once("launcher")},
        "Worker": {"replicas": 2, "template": once("worker")},
    }
    spec = {"slotsPerWorker": 1, "mpiReplicaSpecs": replicas}
    spec["runPolicy"] = {"cleanPodPolicy": "All"}
    return queued("kubeflow.org/v2beta1", "MPIJob", spec)


def ray(workers: int = 2, **spec: Any) -> Document:
    group = {"groupName": "workers", "replicas": workers, "minReplicas": 0, "maxReplicas": 8}
    return {
        "rayVersion": "2.46.0",
        "headGroupSpec": {"rayStartParams": {}, "template": pod("head")},
        "workerGroupSpecs": [{**group, "rayStartParams": {}, "template": pod("worker")}],
        **spec,
    }


def ray_cluster(workers: int = 2, **head: Any) -> Document:
    return queued("ray.io/v1", "RayCluster", ray(workers), **head)


def ray_job() -> Document:
    spec = {"entrypoint": "python main.py", "shutdownAfterJobFinishes": True}
    submitter = {"submitterPodTemplate": once("submitter")}
    return queued("ray.io/v1", "RayJob", {**spec, **submitter, "rayClusterSpec": ray()})


def runtime() -> Document:
    """A ClusterTrainingRuntime of plain nodes."""
    node = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": once("node")},
        },
    }
    spec = {"mlPolicy": {"numNodes": 1}, "template": {"spec": {"replicatedJobs": [node]}}}
    head = {"name": "plain", "labels": {"trainer.kubeflow.org/framework": "torch"}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": head,
        "spec": spec,
    }


def train_job() -> Document:
    trainer = {"numNodes": 2, "resourcesPerNode": {"requests": {"cpu": "2"}}}
    spec = {"runtimeRef": {"name": "plain"}, "trainer": trainer}
    return queued("trainer.kubeflow.org/v1alpha1", "TrainJob", spec)


def app_wrapper() -> Document:
    wrapped = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "wrapped"},
        "spec": {"parallelism": 2, "completions": 2, "template": once()},
    }
    return queued(
        "workload.codeflare.dev/v1beta2", "AppWrapper", {"components": [{"template": wrapped}]}
    )


def _launcher(pod: Document) -> bool:
    return "launcher" in pod["metadata"]["name"]


RUNTIMES = "/apis/trainer.kubeflow.org/v1alpha1/clustertrainingruntimes"
CASES: Final = (
    Case("jobset", "jobsets", jobset(), pods=5, cpus=5),
    Case(
        *("lws", "leaderworkersets", leader_worker_set()),
        pods=6,
        cpus=6,
        done=None,
        workloads=2,
    ),
    Case("kuberay", "rayclusters", ray_cluster(), pods=3, cpus=3, done=None),
    Case("kuberay", "rayjobs", ray_job(), pods=4, cpus=4, done=None),
    Case(
        *("training", "pytorchjobs"),
        kubeflow(
            "PyTorchJob",
            "pytorchReplicaSpecs",
            {"Master": ("pytorch", 1), "Worker": ("pytorch", 2)},
        ),
        pods=3,
        cpus=3,
    ),
    Case(
        *("training", "tfjobs"),
        kubeflow(
            "TFJob", "tfReplicaSpecs", {"Chief": ("tensorflow", 1), "Worker": ("tensorflow", 2)}
        ),
        pods=3,
        cpus=3,
    ),
    Case(
        *("training", "xgboostjobs"),
        kubeflow(
            "XGBoostJob", "xgbReplicaSpecs", {"Master": ("xgboost", 1), "Worker": ("xgboost", 2)}
        ),
        pods=3,
        cpus=3,
    ),
    Case(
        *("training", "paddlejobs"),
        kubeflow("PaddleJob", "paddleReplicaSpecs", {"Worker": ("paddle", 2)}),
        pods=2,
        cpus=2,
    ),
    Case(
        *("training", "jaxjobs"),
        kubeflow("JAXJob", "jaxReplicaSpecs", {"Worker": ("jax", 2)}),
        pods=2,
        cpus=2,
    ),
    Case("mpi", "mpijobs", mpi(), pods=3, cpus=3, done=_launcher),
    Case(
        *("trainer", "trainjobs", train_job()),
        pods=2,
        cpus=4,
        before=((RUNTIMES, runtime()),),
    ),
    Case("appwrapper", "appwrappers", app_wrapper(), pods=2, cpus=2),
)
