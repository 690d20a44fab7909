"""The first process of a node: lays out its private mounts, then starts and ends what it is told, and reaps orphans.

Run by `node.py` inside fresh mount, network, pid, UTS, IPC and control group namespaces. A line of JSON in, a line out, over a
socket in the node's directory:

    {"start": NAME, "command": [...], "log": PATH, "environment": {...}}    {"pid": 17}
    {"stop": NAME, "signal": 15, "wait_s": 20}                              {"stopped": true}
    {"status": true}                                                        {"running": {NAME: PID}}

When it ends, the kernel ends everything else on the node: a power cut.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.machine import cgroups

DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
    "kmsg": (1, 11),
    "fuse": (10, 229),
}
LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
    "ptmx": "pts/ptmx",
}
KUBELET_SYSCTLS = {"vm/overcommit_memory": "1", "kernel/panic": "10", "kernel/panic_on_oops": "1"}
"""The kubelet would set them, for the whole machine. It is shown files that have the values already."""
HIDDEN = ("/var/lib", "/var/log")
POLL_S = 0.02


def main(directory: Path) -> int:
    settings = json.loads((directory / "node.json").read_text())
    lay_out(directory, settings)
    Supervisor(directory / "init.sock").serve()
    return 0


def lay_out(directory: Path, settings: dict[str, Any]) -> None:
    socket.sethostname(settings["hostname"])
    _run("mount", "--make-rprivate", "/")
    _tmpfs("/run", "mode=755")
    for place in ("/run/lock", "/run/netns", "/run/containerd"):
        os.mkdir(place)
    _overlay("/etc", directory / "etc")
    others = "".join(f"{address} {name}\n" for name, address in settings["others"].items())
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost {settings['hostname']}\n{others}")
    for changed in ("/etc/resolv.conf",):  # often a link into /run
        Path(changed).unlink(missing_ok=True)
        Path(changed).write_text(f"nameserver {settings['dns']}\n")
    for hidden in HIDDEN:
        own = directory / "disk" / hidden.lstrip("/")
        own.mkdir(parents=True, exist_ok=True)
        _run("mount", "--bind", own, hidden)
    _devices(settings["gpus"])
    _run("mount", "-t", "sysfs", "sysfs", "/sys")
    _control_groups(settings["cgroup_v2"])
    for kind, place in (
        ("bpf", "/sys/fs/bpf"),
        ("debugfs", "/sys/kernel/debug"),
        ("tracefs", "/sys/kernel/tracing"),
    ):
        with suppress(subprocess.CalledProcessError):  # not in every kernel
            _run("mount", "-t", kind, kind, place)
    for name, value in KUBELET_SYSCTLS.items():
        shown = directory / "sysctl" / name.replace("/", ".")
        shown.parent.mkdir(exist_ok=True)
        shown.write_text(f"{value}\n")
        _run("mount", "--bind", shown, f"/proc/sys/{name}")
    _run("mount", "--make-rshared", "/")  # what a pod mounts for the host is seen there
    _network(settings)


def _devices(gpus: int) -> None:
    """A /dev of its own, with a GPU's nodes: they are /dev/null by number, nothing can be harmed by opening them."""
    place = Path("/run/dev")
    place.mkdir()
    _tmpfs(place, "mode=755,dev")
    nodes = dict(DEVICES)
    shared = ("nvidiactl", "nvidia-uvm") if gpus else ()
    for name in (*shared, *(f"nvidia{index}" for index in range(gpus))):
        nodes[name] = DEVICES["null"]
    for name, (major, minor) in nodes.items():
        os.mknod(place / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        os.chmod(place / name, 0o666)
    for name, target in LINKS.items():
        (place / name).symlink_to(target)
    for name in ("pts", "shm", "mqueue"):
        (place / name).mkdir()
    _run("mount", "--move", place, "/dev")
    _run(
        "mount",
        "-t",
        "devpts",
        "-o",
        "newinstance,ptmxmode=0666,mode=620,gid=5",
        "devpts",
        "/dev/pts",
    )
    _tmpfs("/dev/shm", "mode=1777")
    _run("mount", "-t", "mqueue", "mqueue", "/dev/mqueue")


def _control_groups(v2: bool) -> None:
    if v2:
        _run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        cgroups.take_over_v2()
        return
    _tmpfs("/sys/fs/cgroup", "mode=755")
    known = {line.split("\t")[0] for line in Path("/proc/cgroups").read_text().splitlines()}
    for controller in cgroups.V1_CONTROLLERS:
        if controller in known:
            _mounted("cgroup", f"/sys/fs/cgroup/{controller}", controller)
    _mounted("cgroup", "/sys/fs/cgroup/systemd", "none,name=systemd")
    _mounted("cgroup2", "/sys/fs/cgroup/unified", "rw")


def _mounted(kind: str, place: str, options: str) -> None:
    os.mkdir(place)
    _run("mount", "-t", kind, "-o", options, kind, place)


def _network(settings: dict[str, Any]) -> None:
    """A bridge for the pods' network plugin; no way out of it. Without an address of its own it takes the lowest of the
    pods' that come and go, and a pod that knows the one before answers nobody until its neighbour table has aged."""
    for command in (
        "link set lo up",
        "link add cni0 address 02:00:00:00:00:01 type bridge",
        f"addr add {settings['node_ip']}/24 dev cni0",
        "link set cni0 up",
    ):
        _run("ip", *command.split())
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _overlay(place: str, own: Path) -> None:
    """The host's files, and what the node writes in a directory of its own."""
    for name in ("changed", "work"):
        (own / name).mkdir(parents=True, exist_ok=True)
    options = f"lowerdir={place},upperdir={own / 'changed'},workdir={own / 'work'}"
    _run("mount", "-t", "overlay", "overlay", "-o", options, place)


def _tmpfs(place: str | Path, options: str) -> None:
    _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", place)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


class Supervisor:
    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen()
        self._listener.settimeout(0.5)
        self._running: dict[str, int] = {}

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        while True:
            self._reap()
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection, suppress(OSError):
                connection.settimeout(5)
                with connection.makefile("rw") as lines:
                    line = lines.readline()
                    if line:
                        lines.write(json.dumps(self._answer(json.loads(line))) + "\n")

    def _answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "start" in asked:
            return self._start(asked)
        if "stop" in asked:
            return self._stop(
                asked["stop"], asked.get("signal", signal.SIGTERM), asked.get("wait_s", 20)
            )
        self._reap()
        return {"running": self._running}

    def _start(self, asked: dict[str, Any]) -> dict[str, Any]:
        with open(asked["log"], "ab") as log:
            try:
                process = subprocess.Popen(
                    asked["command"],
                    env=asked["environment"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                return {"error": str(error)}
        process.returncode = 0  # reaped below, not by subprocess
        self._running[asked["start"]] = process.pid
        return {"pid": process.pid}

    def _stop(self, name: str, number: int, wait_s: float) -> dict[str, Any]:
        pid = self._running.get(name)
        if pid is None:
            return {"stopped": False}
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        end_s = time.monotonic() + wait_s
        while name in self._running and time.monotonic() < end_s:
            self._reap()
            time.sleep(POLL_S)
        return {"stopped": name not in self._running}

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                for name, pid in list(self._running.items()):
                    if pid == ended:
                        del self._running[name]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
