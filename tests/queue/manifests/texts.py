"""Manifests as users write them."""

from __future__ import annotations

GOOD = """apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: plain}
spec: {nodeLabels: {pool: gpu}}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: a}
spec:
  namespaceSelector: {matchLabels: {team: a}}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu]
    flavors: [{name: plain, resources: [{name: nvidia.com/gpu, nominalQuota: 4}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: main, namespace: team-a}
spec: {clusterQueue: a}
---
kind: Namespace
apiVersion: v1
metadata: {name: team-a, labels: {team: a}}
---
kind: Node
apiVersion: v1
metadata: {name: n, labels: {pool: gpu}}
status: {allocatable: {nvidia.com/gpu: 8}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: team-a, labels: {kueue.x-k8s.io/queue-name: main}}
spec:
  template:
    spec: {containers: [{name: c, resources: {requests: {nvidia.com/gpu: 1}}}]}
"""
CONFIGURATION = """
kind: Configuration
apiVersion: config.kueue.x-k8s.io/v1beta2
resources:
  excludeResourcePrefixes: [example.com/]
  transformations:
  - {input: a, strategy: Replace, outputs: {b: "2", c: "3"}}
  - {input: d, strategy: Retain, outputs: {b: "1"}}
  - {input: e, strategy: Replace, multiplyBy: d, outputs: {f: "10"}}
---
"""
POD = """
kind: Pod
metadata: {name: p, labels: {kueue.x-k8s.io/queue-name: q}}
spec:
  containers:
  - resources: {requests: {%s}}
"""
