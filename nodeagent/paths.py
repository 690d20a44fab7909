"""Default paths of the runtime and state directories, shared by the daemon and its clients.

The environment is an argument, so that only the composition roots read it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

SOCKET_NAME = "sluice.sock"
_LONGEST_SOCKET_PATH = 107
"""Bytes: sun_path holds 108 with its NUL."""


def host_name(environment: Mapping[str, str]) -> str:
    """Name of this node if none is configured. A DaemonSet sets NODE_NAME, because a pod's host
    name is not the node's."""
    return environment.get("NODE_NAME") or socket.gethostname()


def runtime_dir(configured: str, environment: Mapping[str, str]) -> Path:
    if configured:
        return Path(configured)
    if os.geteuid() == 0:
        return Path("/run/sluice")
    return Path(environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}") / "sluice"


def state_dir(configured: str, environment: Mapping[str, str]) -> Path:
    if configured:
        return Path(configured)
    if os.geteuid() == 0:
        return Path("/var/lib/sluice")
    home = environment.get("XDG_STATE_HOME") or f"{environment.get('HOME', '/tmp')}/.local/state"
    return Path(home) / "sluice"


def library_dir(environment: Mapping[str, str]) -> Path:
    """Directory of the copies of our libraries that programs load.

    Root's copies are not in the state directory, which other users cannot read: a program may
    change its user and load them afterwards.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/sluice-libraries")
    return state_dir("", environment) / "libraries"


def client_socket(given: str | None, environment: Mapping[str, str]) -> Path:
    """Path of the daemon's socket for a client: --socket, then $SLUICE_SOCKET, then the user's own
    daemon if it runs, then the system's."""
    named = given or environment.get("SLUICE_SOCKET")
    if named:
        return Path(named)
    system = Path("/run/sluice") / SOCKET_NAME
    own = runtime_dir("", environment) / SOCKET_NAME
    return own if own.exists() else system


def longest_runtime_dir() -> int:
    """Longest path of a runtime directory, in bytes, that leaves room for the longest socket name
    below it."""
    return _LONGEST_SOCKET_PATH - len("/api/c999999999")
