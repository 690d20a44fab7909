"""The NUMA node of a card, as the kubelet's Topology Manager counts them."""

from __future__ import annotations

from typing import Any, Final

from nodeagent.adapters.nvml.binding import pynvml

WORD_BITS: Final = 64
SET_WORDS: Final = 16
"""Words in a set of NUMA nodes: Linux has at most 1,024."""


def nearest_numa_node(handle: Any) -> int | None:
    """The NUMA node whose CPUs and memory are nearest to the card; None if several are.

    This is not nvmlDeviceGetNumaNodeId: that is the node which consists of the card's own memory,
    and only machines such as Grace have one. Raises pynvml.NVMLError.
    """
    near = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = pynvml.nvmlDeviceGetMemoryAffinity(handle, SET_WORDS, near)
    nodes = sum(int(word) << WORD_BITS * at for at, word in enumerate(words))
    return nodes.bit_length() - 1 if nodes.bit_count() == 1 else None
