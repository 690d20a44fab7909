"""A queue for pods, and what a node says of one that waits."""

from __future__ import annotations

from tests.kit.pods import PodNode
from tests.kit.queue import queues

QUEUES = queues.manifests(
    queues.flavor("h100"),
    queues.namespace("vision"),
    queues.cluster_queue(
        "vision", "h100", {queues.GPU: 2, queues.GPU_MEMORY: "64k", queues.GPU_CORES: 100}
    ),
    queues.local_queue("train", "vision", "vision"),
)
LABELS = {"kueue.x-k8s.io/queue-name": "train"}


def refusal(node: PodNode, uid: str) -> str:
    return str(node.kubelet.do("start_container", uid=uid, container="main").get("error", ""))
