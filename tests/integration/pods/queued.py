"""A queue for pods, and what a node says of one that waits."""

from __future__ import annotations

from tests.kit.pods import PodNode

QUEUES = """
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: h100}
---
apiVersion: v1
kind: Namespace
metadata: {name: vision}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: vision}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, nvidia.com/gpumem, nvidia.com/gpucores]
    flavors:
    - name: h100
      resources:
      - {name: nvidia.com/gpu, nominalQuota: 2}
      - {name: nvidia.com/gpumem, nominalQuota: 64k}
      - {name: nvidia.com/gpucores, nominalQuota: 100}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: train, namespace: vision}
spec: {clusterQueue: vision}
"""
LABELS = {"kueue.x-k8s.io/queue-name": "train"}


def refusal(node: PodNode, uid: str) -> str:
    return str(node.kubelet.do("start_container", uid=uid, container="main").get("error", ""))
