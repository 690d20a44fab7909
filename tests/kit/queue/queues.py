"""Manifests of a queue's objects as text, for tests that apply them to a queue controller or to a cluster."""

from __future__ import annotations

from collections.abc import Mapping

V1BETA1, V1BETA2 = "kueue.x-k8s.io/v1beta1", "kueue.x-k8s.io/v1beta2"
GPU, GPU_MEMORY, GPU_CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"


def manifests(*documents: str) -> str:
    return "---\n".join(documents)


def _head(version: str, kind: str, name: str, namespace: str = "") -> str:
    where = f", namespace: {namespace}" if namespace else ""
    return f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: {name}{where}}}\n"


def namespace(name: str) -> str:
    return _head("v1", "Namespace", name)


def flavor(name: str, version: str = V1BETA1) -> str:
    return _head(version, "ResourceFlavor", name)


def priority_class(name: str, value: int) -> str:
    return _head(V1BETA1, "WorkloadPriorityClass", name) + f"value: {value}\n"


def cluster_queue(
    name: str,
    flavor: str,
    quotas: Mapping[str, int | str],
    *spec: str,
    cohort: str = "",
    version: str = V1BETA1,
) -> str:
    """One group of resources with one flavor, open to every namespace; `spec`: further lines of its specification."""
    lines = [*([f"cohort: {cohort}"] if cohort else []), "namespaceSelector: {}", *spec]
    lines += ["resourceGroups:", f"- coveredResources: [{', '.join(quotas)}]", "  flavors:"]
    lines.append(f"  - name: {flavor}")
    amounts = [f"{{name: {one}, nominalQuota: {much}}}" for one, much in quotas.items()]
    if len(amounts) == 1:
        lines.append(f"    resources: [{amounts[0]}]")
    else:
        lines += ["    resources:", *(f"    - {one}" for one in amounts)]
    return _head(version, "ClusterQueue", name) + "".join(
        f"{one}\n" for one in ("spec:", *(f"  {one}" for one in lines))
    )


def local_queue(
    name: str, namespace: str, cluster_queue: str, more: str = "", version: str = V1BETA1
) -> str:
    return (
        _head(version, "LocalQueue", name, namespace)
        + f"spec: {{clusterQueue: {cluster_queue}{more}}}\n"
    )
