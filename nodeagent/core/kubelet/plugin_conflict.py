"""Detects another device plugin that serves our resource.

The kubelet uses the plugin that registered last, so two plugins for one name replace each other in
turn, and pods get GPUs without a grant. The kubelet does not report this to plugins, but two traces
are visible from the node: device ids of our resource in the kubelet's checkpoint that we never
create, and other plugins' sockets, whose owner the kernel knows. Asking the other plugin for its
devices could disturb it, so we do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.ports.kubelet import NotOurs, parse_slot
from nodeagent.ports.views import Finding

TOPIC: Final = "device plugins"
NAMES: Final = ("nvidia", "gpu", "hami", "volcano")
"""Words in the socket and program names of plugins for NVIDIA's GPUs."""
MAX_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """Another plugin's socket that answers in the kubelet's device-plugins directory."""

    name: str
    pid: int | None = None
    """Process id from the kernel; None if it is in a pid namespace that we do not see."""
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return self.name
        return f"{self.name} ({self.command or 'a program'}, pid {self.pid})"


def look(resource: str, registered: Sequence[str], sockets: Sequence[PluginSocket]) -> Finding:
    """Look for a conflict.

    `registered` has the ids in the kubelet's checkpoint for our resource; `sockets` are other
    plugins'. Level missing means a certain conflict, warning a possible one. A plugin whose ids
    look like ours (NVIDIA's with time slicing) shows by its socket only.
    """
    foreign = [one for one in registered if not _alike(one)]
    rivals = [one for one in sockets if any(word in _words(one) for word in NAMES)]
    remedy = (
        f"only one plugin may serve {resource}: remove the other from this node (its DaemonSet's"
        " node selector: gpu=on for HAMi, nvidia.com/gpu.deploy.device-plugin for the GPU"
        " operator), or give one of them another name (kubelet.resource_count)"
    )
    if foreign:
        shown = ", ".join(map(_printable, foreign[:MAX_SHOWN]))
        more = ", …" if len(foreign) > MAX_SHOWN else ""
        by = f"; possibly by {', '.join(map(str, rivals))}" if rivals else ""
        count = f"{len(foreign)} device{'s' if len(foreign) > 1 else ''}"
        return Finding(
            TOPIC,
            "missing",
            f"the kubelet has {count} of {resource} that another plugin registered"
            f" ({shown}{more}){by}",
            remedy,
        )
    if rivals:
        return Finding(
            TOPIC,
            "warning",
            f"another plugin for GPUs runs here: {', '.join(map(str, rivals))}",
            remedy,
        )
    return Finding(TOPIC, "ok", f"no other plugin for {resource} found")


def _alike(device_id: str) -> bool:
    try:
        parse_slot(device_id)
    except NotOurs:
        return False
    return True


def _words(socket: PluginSocket) -> str:
    return f"{socket.name} {socket.command}".lower()


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:64]
