"""Decides if a pod is one rank of a job whose ranks wait for each other.

A pod does not show on which nodes the others are, so labels decide as far as they can: those that
frameworks give to pods that talk to each other. The annotation `sluice.dev/gang` takes precedence.
"""

from __future__ import annotations

from typing import Final

from nodeagent.ports.kubelet import ContainerRequests, PermanentError

ANNOTATION: Final = "sluice.dev/gang"

_JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Label of an indexed Job's pods. They find each other by a headless service, their subdomain; pods
of a Job without one have nothing to wait for."""
_MEMBERS: Final = ("jobset.sigs.k8s.io/jobset-name", "training.kubeflow.org/job-name")
"""Labels of pods in a set that is started as a whole."""
_COUNTS: Final = (
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/size"),
    ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
)
"""A group's label, and the annotation with its number of pods."""


def is_gang(requests: ContainerRequests, nodes: int = 0) -> bool:
    """`nodes`: number of nodes on which the queue has placed the pod's workload; 0: unknown. Raises
    PermanentError for an invalid annotation."""
    labels, annotations = dict(requests.labels), dict(requests.annotations)
    text = annotations.get(ANNOTATION, "").strip()
    if text not in ("", "true", "false"):
        raise PermanentError(f"{ANNOTATION}: must be true or false, got {text[:40]!r}")
    if text:
        return text == "true"
    if nodes > 1:
        return True
    if _JOB_INDEX in labels and requests.subdomain:
        return True
    if any(label in labels for label in _MEMBERS):
        return True
    return any(
        label in labels and annotations.get(count, "1").strip() != "1" for label, count in _COUNTS
    )
