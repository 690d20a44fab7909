"""The eBPF child as its daemon's metrics show it."""

from __future__ import annotations

import re

from tests.kit.node import Node, NodeError


def metric(node: Node, name: str, labels: str = "") -> float:
    found = re.search(rf"^{name}{re.escape(labels)} (\S+)$", node.metrics(), re.MULTILINE)
    if found is None:
        raise NodeError(f"no {name}{labels}")
    return float(found[1])


def is_up(node: Node) -> bool:
    return metric(node, "sluice_ebpf_up") == 1.0
