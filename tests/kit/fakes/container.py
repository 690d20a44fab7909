"""One process as a container runtime would start it: in mount, pid and IPC namespaces of its own,
on a root that forgets what is written to it, with the edits of CDI applied in the runtimes' order.

Not a sandbox: no seccomp, no user namespace, the host's network. What matters to a grant is the
same as in runc: what is mounted where, hooks and their moments, the environment, capabilities.
Source: OCI runtime specification 1.2, "Lifecycle" and "Hooks"; CDI 1.1.0, "OCI edits".
"""

from __future__ import annotations

import ctypes
import json
import os
import posixpath
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from nodeagent.adapters.host import mounts

RUNTIME_FAILED: Final = 125
NOT_FOUND: Final = 127
_KEPT_CAPABILITIES: Final = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)
"""Capabilities that runtimes leave to a container's root: no SYS_ADMIN, so it cannot mount."""
_NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_FLAGS: Final = {
    "ro": mounts.MS_RDONLY,
    "nosuid": mounts.MS_NOSUID,
    "nodev": mounts.MS_NODEV,
    "noexec": mounts.MS_NOEXEC,
}
_IGNORED: Final = {"rw", "bind", "rbind", "private", "rprivate", "suid", "dev", "exec"}
_LONGEST_LINKS: Final = 40
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _LAST_CAPABILITY = 1, 24, 63

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """The container cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Volume:
    host_path: str
    container_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    command: Sequence[str]
    edits: Mapping[str, Any]
    """containerEdits of all its devices together."""
    rootfs: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[Volume] = ()
    uid: int = 0
    gid: int = 0
    cgroup: Path | None = None
    workdir: str = "/"


def run(container: Container, place: Path) -> int:
    """Its exit status, 128 + N for a signal. `place` is an empty directory that keeps nothing.
    Needs root. Raises Refused, OSError."""
    if os.geteuid() != 0:
        raise Refused("making containers needs root")
    if any(mark in str(container.rootfs) for mark in ",:\\"):
        raise Refused(f"{container.rootfs}: a path with , : or \\ cannot be an overlay")
    bundle = _bundle(container, place)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    mounts.unshare(mounts.CLONE_NEWPID)  # of children: the first is its pid 1
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready_read)
        os.close(go_write)
        _child(container, place, bundle, ready_write, go_read)
    mounts.enter(own)  # hooks are the host's, and nothing starts where pid 1 has ended
    os.close(own)
    os.close(ready_write)
    os.close(go_read)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda what, _: os.kill(child, what))
    try:
        if os.read(ready_read, 1):  # its mounts are made; otherwise it has said why not
            _join(container.cgroup, child)
            for moment in ("prestart", "createRuntime"):
                _run_hooks(container, moment, _state(bundle, child, "creating"))
            os.write(go_write, b"g")
    finally:
        os.close(go_write)  # without the word it ends
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    _run_hooks(container, "poststop", _state(bundle, 0, "stopped"))
    return status if status >= 0 else 128 - status


def _bundle(container: Container, place: Path) -> Path:
    bundle = place / "bundle"
    bundle.mkdir()
    (place / "layers").mkdir()
    (bundle / "config.json").write_text(
        json.dumps(
            {
                "ociVersion": "1.1.0",
                "process": {"args": list(container.command), "env": _environment(container)},
                "root": {"path": str(place / "layers" / "root")},
                "linux": {},
            }
        ),
        encoding="utf-8",
    )
    return bundle


def _environment(container: Container) -> list[str]:
    """CDI's own replaces what the container has under the same name."""
    values = dict(container.environment)
    for assignment in container.edits.get("env") or ():
        name, _, value = assignment.partition("=")
        values[name] = value
    return [f"{name}={value}" for name, value in values.items()]


def _state(bundle: Path, pid: int, status: str) -> str:
    return json.dumps(
        {
            "ociVersion": "1.1.0",
            "id": bundle.parent.name,
            "status": status,
            "pid": pid,
            "bundle": str(bundle),
        }
    )


def _join(cgroup: Path | None, pid: int) -> None:
    if cgroup is not None:
        cgroup.mkdir(parents=True, exist_ok=True)
        (cgroup / "cgroup.procs").write_text(str(pid), encoding="ascii")


def _run_hooks(container: Container, moment: str, state: str) -> None:
    """Run hooks with the root as working directory and only the environment that they request."""
    for hook in container.edits.get("hooks") or ():
        if hook["hookName"] != moment:
            continue
        try:
            done = subprocess.run(
                hook.get("args") or [hook["path"]],
                executable=hook["path"],
                input=state,
                capture_output=True,
                text=True,
                env=dict(one.split("=", 1) for one in hook.get("env") or ()),
                timeout=hook.get("timeout") or 60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Refused(f"{moment} hook {hook['path']}: {error}") from error
        if done.returncode != 0:
            raise Refused(
                f"{moment} hook {hook['path']}: exit {done.returncode}: {done.stderr.strip()}"
            )


# --- inside ---------------------------------------------------------------------------------------


def _child(container: Container, place: Path, bundle: Path, ready: int, go: int) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        mounts.unshare(mounts.CLONE_NEWNS | mounts.CLONE_NEWIPC)
        mounts.mount(None, Path("/"), mounts.MS_REC | mounts.MS_PRIVATE)
        root = _root(container, place / "layers")
        _apply(container, root)
        os.write(ready, b"r")
        os.close(ready)
        if not os.read(go, 1):
            os._exit(RUNTIME_FAILED)
        os.chdir(root)
        state = _state(bundle, os.getpid(), "creating")
        _run_hooks(container, "createContainer", state)
        mounts.pivot(root)
        _run_hooks(container, "startContainer", state)
        _become(container)
    except (OSError, Refused, KeyError, ValueError) as error:
        print(f"runtime: {error}", file=sys.stderr, flush=True)
    os._exit(RUNTIME_FAILED)


def _root(container: Container, layers: Path) -> Path:
    """An overlay over the root file system of the image, or of the host."""
    mounts.tmpfs(layers, "mode=0755")
    upper, work, root = (layers / name for name in ("upper", "work", "root"))
    for directory in (upper, work, root):
        directory.mkdir()
    mounts.mount(
        Path("overlay"),
        root,
        0,
        "overlay",
        f"lowerdir={container.rootfs},upperdir={upper},workdir={work}",
    )
    for name in ("proc", "sys", "dev", "run", "tmp"):
        (root / name).mkdir(exist_ok=True)
    quiet = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
    mounts.mount(Path("proc"), root / "proc", quiet, "proc")
    mounts.mount(Path("sysfs"), root / "sys", quiet | mounts.MS_RDONLY, "sysfs")
    mounts.tmpfs(root / "run", "mode=0755")
    mounts.tmpfs(root / "tmp", "mode=1777")
    _devices(root / "dev")
    return root


def _devices(directory: Path) -> None:
    mounts.tmpfs(directory, "mode=0755")
    for name in _NODES:
        _node(Path("/dev") / name, directory / name, None)
    for name, target in _LINKS.items():
        (directory / name).symlink_to(target)
    (directory / "pts").mkdir()
    mounts.mount(Path("devpts"), directory / "pts", 0, "devpts", "newinstance,ptmxmode=0666")
    (directory / "shm").mkdir()
    mounts.tmpfs(directory / "shm", "mode=1777")


def _node(source: Path, target: Path, asked: Mapping[str, Any] | None) -> None:
    seen = source.stat()
    if not (stat.S_ISCHR(seen.st_mode) or stat.S_ISBLK(seen.st_mode)):
        raise Refused(f"{source} is no device")
    asked = asked or {}
    mode = asked.get("fileMode")
    target.unlink(missing_ok=True)
    os.mknod(target, seen.st_mode, seen.st_rdev)
    target.chmod(stat.S_IMODE(seen.st_mode) if mode is None else mode)
    os.chown(target, asked.get("uid", seen.st_uid), asked.get("gid", seen.st_gid))


def _apply(container: Container, root: Path) -> None:
    for volume in container.volumes:
        options = ["ro" if volume.read_only else "rw"]
        _bind(root, volume.host_path, volume.container_path, options)
    for node in container.edits.get("deviceNodes") or ():
        target = inside(root, node["path"])
        target.parent.mkdir(parents=True, exist_ok=True)
        _node(Path(node.get("hostPath") or node["path"]), target, node)
    wanted = {mount["containerPath"]: mount for mount in container.edits.get("mounts") or ()}
    for path in sorted(wanted, key=lambda one: len(Path(posixpath.normpath(one)).parts)):
        mount = wanted[path]
        _bind(root, mount["hostPath"], path, mount.get("options") or [], mount.get("type"))


def _bind(
    root: Path, host: str, path: str, options: Sequence[str], kind: str | None = None
) -> None:
    source = Path(host)
    flags = 0
    for option in options:
        if option in _FLAGS:
            flags |= _FLAGS[option]
        elif option not in _IGNORED and kind in (None, "bind"):
            raise Refused(f"{path}: mount option {option!r} is not known here")
    target = inside(root, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if kind == "tmpfs":
        target.mkdir(exist_ok=True)
        mounts.tmpfs(target, ",".join(one for one in options if one not in (*_FLAGS, *_IGNORED)))
        return
    if not source.exists():
        raise Refused(f"{path}: {host} does not exist")
    if source.is_dir():
        target.mkdir(exist_ok=True)
    elif not target.exists():
        target.touch()
    mounts.mount(source, target, mounts.MS_BIND | mounts.MS_REC)
    if flags:
        mounts.mount(None, target, mounts.MS_BIND | mounts.MS_REMOUNT | flags)


def inside(root: Path, path: str) -> Path:
    """Where the container finds `path`: links of the image are followed within its root. Raises
    Refused for a circle of links."""
    left = [part for part in path.split("/") if part not in ("", ".")]
    at: list[str] = []
    links = 0
    while left:
        part = left.pop(0)
        if part == "..":
            del at[-1:]
            continue
        here = root.joinpath(*at, part)
        if not here.is_symlink():
            at.append(part)
            continue
        links += 1
        if links > _LONGEST_LINKS:
            raise Refused(f"{path}: too many links in the image")
        target = os.readlink(here)
        if target.startswith("/"):
            at = []
        left = [one for one in target.split("/") if one not in ("", ".")] + left
    return root.joinpath(*at)


def _become(container: Container) -> NoReturn:
    for capability in range(_LAST_CAPABILITY + 1):
        if capability not in _KEPT_CAPABILITIES:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    groups = container.edits.get("additionalGids") or []
    os.setgroups([container.gid, *groups])
    os.setgid(container.gid)
    os.setuid(container.uid)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python's own settings
        signal.signal(number, signal.SIG_DFL)
    os.chdir(container.workdir)
    environment = dict(one.split("=", 1) for one in _environment(container))
    command = list(container.command)
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        print(f"runtime: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(NOT_FOUND)
