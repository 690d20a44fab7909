"""The sockets in the kubelet's device-plugins directory, with the processes that listen on them."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from nodeagent.core.kubelet.plugin_conflict import PluginSocket

KUBELET: Final = "kubelet.sock"
CONNECT_S: Final = 0.2
"""Seconds; a plugin that does not accept a connection within them is treated as stopped."""
LONGEST_PATH: Final = 107
"""Maximum length of sockaddr_un's path, without the final NUL."""


def others(directory: Path) -> list[PluginSocket]:
    """Sockets that other processes listen on; none if the directory cannot be read."""
    found = []
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    for name in names:
        if name != KUBELET:
            one = _look(directory, name)
            if one is not None:
                found.append(one)
    return found


def _look(directory: Path, name: str) -> PluginSocket | None:
    try:
        if not stat.S_ISSOCK(os.lstat(directory / name).st_mode):
            return None
        root = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    path = f"/proc/self/fd/{root}/{name}"  # This path is short, however deep the directory is.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            if len(os.fsencode(path)) > LONGEST_PATH:
                return None
            probe.connect(path)
            data = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
        finally:
            os.close(root)
    pid = struct.unpack("3i", data)[0]
    if pid <= 0:
        return PluginSocket(name)
    if pid == os.getpid():
        return None
    return PluginSocket(name, pid, _command(pid))


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    name = os.path.basename(words[0]).decode(errors="replace") if words and words[0] else ""
    return "".join(c if c.isprintable() else "?" for c in name)[:64]
