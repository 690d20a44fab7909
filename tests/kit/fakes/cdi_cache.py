"""The CDI directories as a container runtime has them: read once, read again when the kernel tells
of a change, with the same blind spot as the runtimes' library.

That library watches for files that are renamed away, removed or written, and until 1.1.1 not for
those that appear: a file renamed within the directory is noticed by its old name's going, one that
comes from elsewhere never. Source: tags.cncf.io/container-device-interface 0.8.0, which is in
containerd 2.0; tests/peers compares.
"""

from __future__ import annotations

import json
import os
import re
import select
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from nodeagent.adapters.containers.cdi_installed import DIRECTORIES, SUFFIXES
from nodeagent.adapters.host import inotify

_NAME: Final = re.compile(
    r"[A-Za-z][\w.-]*[A-Za-z0-9]/[A-Za-z][\w-]*=[A-Za-z0-9](?:[\w.:-]*[A-Za-z0-9])?"
)
_LISTS: Final = ("env", "deviceNodes", "netDevices", "mounts", "hooks", "additionalGids")

Edits = dict[str, Any]


class Unresolvable(Exception):
    """The runtime would not start the container."""


@dataclass(frozen=True, slots=True)
class Device:
    path: Path
    spec: Mapping[str, Any]
    """containerEdits of the whole file."""
    own: Mapping[str, Any]


class CdiCache:
    def __init__(
        self, directories: Sequence[Path] = DIRECTORIES, watch: bool = False, lag_s: float = 0.0
    ) -> None:
        """`watch`: go on noticing changes, each after `lag_s`, as a busy machine would; close()
        ends that. The last directory goes first."""
        self._directories = tuple(directories)
        self._lag_s = lag_s
        self._lock = threading.Lock()
        self._devices: dict[str, Device] = {}
        self.errors: dict[Path, str] = {}
        self.scans = 0
        self._fds = [
            inotify.opened(directory, inotify.NAMES | inotify.IN_MODIFY)
            for directory in self._directories
            if watch and directory.is_dir()
        ]
        self._closing, self._closed = os.pipe2(os.O_CLOEXEC)
        self.scan()
        self._thread = threading.Thread(target=self._follow, name="cdi-cache", daemon=True)
        if self._fds:
            self._thread.start()

    def close(self) -> None:
        os.close(self._closed)
        if self._fds:
            self._thread.join()
        for fd in (*self._fds, self._closing):
            os.close(fd)

    def _follow(self) -> None:
        poll = select.poll()
        for fd in (*self._fds, self._closing):
            poll.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self._closing in ready:
                return
            told = [event for fd in ready for event in inotify.events(fd)]
            if any(_noticed(mask, name) for mask, name in told):
                time.sleep(self._lag_s)
                self.scan()

    def scan(self) -> None:
        """Read everything. Devices that two files of one directory have are in neither."""
        found: dict[str, Device] = {}
        errors: dict[Path, str] = {}
        for directory in self._directories:
            here: dict[str, Device] = {}
            twice: set[str] = set()
            for path in sorted(directory.iterdir()) if directory.is_dir() else ():
                if path.suffix not in SUFFIXES:
                    continue
                try:
                    devices = _read(path)
                except (OSError, ValueError, yaml.YAMLError) as error:
                    errors[path] = str(error)
                    continue
                twice |= here.keys() & devices.keys()
                here |= devices
            found |= here
            for name in twice:
                del found[name]
        with self._lock:
            self._devices, self.errors = found, errors
            self.scans += 1

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._devices)

    def inject(self, names: Sequence[str]) -> Edits:
        """The edits of these devices together. Raises Unresolvable."""
        with self._lock:
            known = dict(self._devices)
        missing = [name for name in names if name not in known]
        if missing:
            raise Unresolvable(f"unresolvable CDI devices {', '.join(missing)}")
        joined: Edits = {}
        files: set[Path] = set()
        for name in names:
            device = known[name]
            if device.path not in files:
                _add(joined, device.spec)
            files.add(device.path)
            _add(joined, device.own)
        return joined


def _noticed(mask: int, name: str) -> bool:
    """Writing is noticed in files that the runtime reads; what a file was called that is renamed
    away does not matter."""
    if mask & inotify.IN_MODIFY:
        return name.endswith(SUFFIXES)
    return bool(mask & (inotify.IN_MOVED_FROM | inotify.IN_DELETE))


def _read(path: Path) -> dict[str, Device]:
    """Raises OSError, ValueError, YAMLError."""
    text = path.read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    if not isinstance(document, dict):
        raise ValueError("no mapping at the top")
    spec = document.get("containerEdits") or {}
    found = {}
    for device in document.get("devices") or ():
        name = f"{document['kind']}={device['name']}"
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a device")
        found[name] = Device(path, spec, device.get("containerEdits") or {})
    if not found:
        raise ValueError("no devices")
    return found


def _add(joined: Edits, edits: Mapping[str, Any]) -> None:
    for key, value in edits.items():
        if key in _LISTS:
            joined.setdefault(key, []).extend(value or ())
        elif value is not None:
            joined[key] = value
