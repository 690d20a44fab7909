"""A document of each kind in the frameworks' table, with fields that no code here knows, and what
its pod sets are."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

QUEUE = "kueue.x-k8s.io/queue-name"


def pod(name: str = "main", cpu: str = "1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "containers": [
                {"name": name, "image": "example/image", "resources": {"requests": {"cpu": cpu}}}
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            **spec,
        },
    }


def job(api_version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": "sample",
            "namespace": "team",
            "uid": "0c5e",
            "labels": {QUEUE: "queue"},
            **metadata,
        },
        "spec": spec,
    }


def _kubeflow(kind: str, specs: str, roles: dict[str, int | None]) -> dict[str, Any]:
    version = "kubeflow.org/v2beta1" if kind == "MPIJob" else "kubeflow.org/v1"
    made = {
        role: {"template": pod(role.lower()), "restartPolicy": "OnFailure"}
        | ({} if count is None else {"replicas": count})
        for role, count in roles.items()
    }
    return job(
        version, kind, {"runPolicy": {"suspend": True, "cleanPodPolicy": "None"}, specs: made}
    )


def _ray() -> dict[str, Any]:
    return {
        "rayVersion": "2.40.0",
        "headGroupSpec": {"rayStartParams": {}, "template": pod("head")},
        "workerGroupSpecs": [
            {"groupName": "Small", "replicas": 3, "template": pod("small", tolerations=[])},
            {"groupName": "large", "numOfHosts": 4, "replicas": 2, "template": pod("large")},
        ],
    }


RUNTIME = {
    "apiVersion": "trainer.kubeflow.org/v1alpha1",
    "kind": "ClusterTrainingRuntime",
    "metadata": {"name": "torch"},
    "spec": {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
        "template": {
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "initializer",
                        "replicas": 1,
                        "template": {"spec": {"template": pod("init")}},
                    },
                    {
                        "name": "node",
                        "replicas": 1,
                        "template": {
                            "metadata": {
                                "labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
                            },
                            "spec": {"template": pod("node", nodeSelector={"zone": "a"})},
                        },
                    },
                ]
            }
        },
    },
}


def runtime_patch(manager: str, **specs: Any) -> dict[str, Any]:
    """An entry of a TrainJob's runtimePatches that changes these pods' specs by replicated job."""
    jobs = [
        {"name": name, "template": {"spec": {"template": {"spec": spec}}}}
        for name, spec in specs.items()
    ]
    described = {"replicatedJobs": jobs} if jobs else {}
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": described}}}


SAMPLES: dict[str, tuple[dict[str, Any], list[tuple[str, int]]]] = {
    "batch/job": (
        job(
            "batch/v1",
            "Job",
            {
                "suspend": True,
                "parallelism": 4,
                "completions": 8,
                "backoffLimit": 2,
                "template": pod(nodeSelector={"zone": "a"}),
            },
        ),
        [("main", 4)],
    ),
    "jobset.x-k8s.io/jobset": (
        job(
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {
                "suspend": True,
                "failurePolicy": {"maxRestarts": 2},
                "replicatedJobs": [
                    {
                        "name": "driver",
                        "template": {"spec": {"template": pod("driver")}},
                    },
                    {
                        "name": "workers",
                        "replicas": 2,
                        "groupName": "default",
                        "template": {
                            "metadata": {"labels": {"kept": "yes"}},
                            "spec": {"parallelism": 5, "completions": 3, "template": pod("worker")},
                        },
                    },
                ],
            },
        ),
        [("driver", 1), ("workers", 6)],
    ),
    "kubeflow.org/pytorchjob": (
        _kubeflow("PyTorchJob", "pytorchReplicaSpecs", {"Worker": 3, "Master": None}),
        [("master", 1), ("worker", 3)],
    ),
    "kubeflow.org/tfjob": (
        _kubeflow("TFJob", "tfReplicaSpecs", {"PS": 2, "Worker": 3, "Chief": 1, "Evaluator": 1}),
        [("chief", 1), ("ps", 2), ("worker", 3), ("evaluator", 1)],
    ),
    "kubeflow.org/xgboostjob": (
        _kubeflow("XGBoostJob", "xgbReplicaSpecs", {"Master": 1, "Worker": 2}),
        [("master", 1), ("worker", 2)],
    ),
    "kubeflow.org/paddlejob": (
        _kubeflow("PaddleJob", "paddleReplicaSpecs", {"Worker": 2}),
        [("worker", 2)],
    ),
    "kubeflow.org/jaxjob": (
        _kubeflow("JAXJob", "jaxReplicaSpecs", {"Worker": 2}),
        [("worker", 2)],
    ),
    "kubeflow.org/mpijob": (
        _kubeflow("MPIJob", "mpiReplicaSpecs", {"Worker": 2, "Launcher": None}),
        [("launcher", 1), ("worker", 2)],
    ),
    "trainer.kubeflow.org/trainjob": (
        job(
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            {
                "suspend": True,
                "runtimeRef": {"name": "torch"},
                "trainer": {"numNodes": 3, "resourcesPerNode": {"requests": {"cpu": "2"}}},
                "runtimePatches": [
                    runtime_patch("example.com/team", node={"nodeSelector": {"disk": "fast"}}),
                    runtime_patch("kueue.x-k8s.io/manager"),
                ],
            },
        ),
        [("initializer", 1), ("node", 3)],
    ),
    "ray.io/rayjob": (
        job(
            "ray.io/v1",
            "RayJob",
            {"suspend": True, "entrypoint": "python a.py", "rayClusterSpec": _ray()},
        ),
        [("head", 1), ("small", 3), ("large", 8), ("submitter", 1)],
    ),
    "ray.io/raycluster": (
        job("ray.io/v1", "RayCluster", {"suspend": True, **_ray()}),
        [("head", 1), ("small", 3), ("large", 8)],
    ),
    "ray.io/rayservice": (
        job(
            "ray.io/v1",
            "RayService",
            {"serveConfigV2": "x: y", "rayClusterConfig": {"suspend": True, **_ray()}},
        ),
        [("head", 1), ("small", 3), ("large", 8)],
    ),
    "workload.codeflare.dev/appwrapper": (
        job(
            "workload.codeflare.dev/v1beta2",
            "AppWrapper",
            {
                "suspend": True,
                "components": [
                    {
                        "podSets": [{"replicas": 2, "path": "template.spec.template"}],
                        "template": {
                            "apiVersion": "example.com/v1",
                            "kind": "Thing",
                            "metadata": {"name": "thing"},
                            "spec": {"template": pod("thing")},
                        },
                    },
                    {
                        "template": {
                            "apiVersion": "v1",
                            "kind": "Service",
                            "metadata": {"name": "service"},
                            "spec": {"ports": [{"port": 80}]},
                        }
                    },
                    {
                        "template": {
                            "apiVersion": "batch/v1",
                            "kind": "Job",
                            "metadata": {"name": "inner"},
                            "spec": {"parallelism": 3, "template": pod("inner")},
                        }
                    },
                ],
            },
        ),
        [("sample-0", 2), ("sample-1", 3)],
    ),
    "sparkoperator.k8s.io/sparkapplication": (
        job(
            "sparkoperator.k8s.io/v1beta2",
            "SparkApplication",
            {
                "suspend": True,
                "type": "Scala",
                "driver": {"coreRequest": "500m", "memory": "512m", "labels": {"version": "3.5"}},
                "executor": {
                    "instances": 2,
                    "cores": 2,
                    "memory": "1g",
                    "gpu": {"name": "nvidia.com/gpu", "quantity": 1},
                },
            },
        ),
        [("driver", 1), ("executor", 2)],
    ),
}


def sample(name: str) -> dict[str, Any]:
    return deepcopy(SAMPLES[name][0])


def workers(replicas: int = 2, leader: bool = True, **spec: Any) -> dict[str, Any]:
    of = {"size": 3, "workerTemplate": pod("worker")}
    if leader:
        of["leaderTemplate"] = pod("leader", cpu="2")
    return job(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"replicas": replicas, "leaderWorkerTemplate": of, **spec},
    )
