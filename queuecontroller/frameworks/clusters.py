"""RayClusters that an elastic RayJob or RayService made: the number of pods of its pod sets."""

from __future__ import annotations

from collections.abc import Container, Sequence

from queuecontroller.frameworks.patches import Document, at
from queuecontroller.frameworks.slots import slots
from queuecontroller.frameworks.table import framework_named

RAY_CLUSTER = framework_named("ray.io/raycluster")


def counts_made(clusters: Sequence[Document], names: Container[str]) -> dict[str, int]:
    """Number of pods that the clusters have together, by pod set with one of these names: its head
    and each of its groups. Raises ManifestError."""
    assert RAY_CLUSTER is not None
    found: dict[str, int] = {}
    for cluster in clusters:
        for one in slots(RAY_CLUSTER, cluster):
            if one.name in names:
                found[one.name] = found.get(one.name, 0) + one.count
    return found


def clusters_made(clusters: Sequence[Document]) -> str:
    """A text that is another one when a cluster is resized, created or deleted."""
    known = ((at(one, ("metadata", key)) for key in ("name", "generation")) for one in clusters)
    return "".join(sorted(f"_{name}.{generation}" for name, generation in known))
