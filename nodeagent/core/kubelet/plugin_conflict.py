"""Does another device plugin serve the resource that we serve?

The kubelet takes whoever registered last, so two plugins for one name push each other out and pods
get GPUs around every grant. Nobody tells a plugin; two traces can be seen from the node: device ids
of our resource in the kubelet's checkpoint that we never make, and other plugins' sockets, whose
owner the kernel knows. Asking the other plugin for its devices could disturb it, so we do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeagent.ports.kubelet import NotOurs, parse_slot
from nodeagent.ports.views import Finding

TOPIC: Final = "device plugins"
NAMES: Final = ("nvidia", "gpu", "hami", "volcano")
"""Words in names of sockets and programs of plugins for NVIDIA's GPUs."""
MOST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class PluginSocket:
    """Somebody else's, in the kubelet's device-plugins directory, and answering."""

    name: str
    pid: int | None = None
    """By the kernel; None: in a pid namespace that we do not see."""
    command: str = ""

    def __str__(self) -> str:
        if self.pid is None:
            return self.name
        return f"{self.name} ({self.command or 'a program'}, pid {self.pid})"


def look(resource: str, registered: Sequence[str], sockets: Sequence[PluginSocket]) -> Finding:
    """`registered`: ids of the kubelet's checkpoint for our resource; `sockets`: other plugins'.
    Level missing: it is so; warning: it may be. A plugin whose ids look like ours (NVIDIA's with
    time slicing) shows by its socket only."""
    foreign = [one for one in registered if not _alike(one)]
    rivals = [one for one in sockets if any(word in _words(one) for word in NAMES)]
    remedy = (
        f"only one plugin may serve {resource}: take the other off this node (its DaemonSet's node"
        " selector: gpu=on for HAMi, nvidia.com/gpu.deploy.device-plugin for the GPU operator), or"
        " give one of them another name (kubelet.resource_count)"
    )
    if foreign:
        shown = ", ".join(map(_printable, foreign[:MOST_SHOWN]))
        more = ", …" if len(foreign) > MOST_SHOWN else ""
        by = f"; it may be {', '.join(map(str, rivals))}" if rivals else ""
        count = f"{len(foreign)} device{'s' if len(foreign) > 1 else ''}"
        return Finding(
            TOPIC,
            "missing",
            f"the kubelet has {count} of {resource} that another plugin made ({shown}{more}){by}",
            remedy,
        )
    if rivals:
        return Finding(
            TOPIC,
            "warning",
            f"another plugin for GPUs runs here: {', '.join(map(str, rivals))}",
            remedy,
        )
    return Finding(TOPIC, "ok", f"nobody else is seen to serve {resource}")


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
