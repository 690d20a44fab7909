"""One machine of a cluster, in private namespaces (mount, network, pid, UTS, IPC, control groups): containerd, a kubelet, and
simulated GPUs as a GPU node has them. Nothing listens outside of them. Needs root.

What it writes lies below its directory; its /run, /dev/shm and processes go with a power cut, its disk stays.
"""

from __future__ import annotations

import ctypes
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.cluster.api import Api, ApiError
from tests.cluster.machine import cgroups, settings
from tests.cluster.programs import build, images, pki
from tests.kit.places import REPO, SIM, TENANT

T = TypeVar("T")
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup")
READY_S = 180.0
DRIVER = "/run/nvidia/driver"
"""Where NVIDIA's operator lays the driver out; in containers it is where the loader looks."""
CLONE_NEWNET = 0x40000000
SIM_NODE = REPO / "packaging" / "sim" / "sluice_sim_node.py"
_libc = ctypes.CDLL(None, use_errno=True)


class ClusterError(Exception):
    """Failure of a program of the cluster, with the end of its log."""


class Machine(ABC):
    api: Api
    """The cluster's API server, from wherever this process runs."""

    def __init__(
        self,
        directory: Path,
        place: settings.Place,
        *,
        minor: str | None,
        gpus: str,
        driver: bool,
        gates: Mapping[str, bool] | None = None,
        lost_s: int = 0,
    ) -> None:
        self.directory = directory.resolve()
        self.place = place
        self.gpus = gpus
        self.driver = driver
        self.gates = dict(gates or {})
        self.lost_s = lost_s
        self._minor = minor
        self.programs = build.programs(minor)
        self.pki = pki.Pki(self.directory / "pki")
        self.started_s: dict[str, float] = {}

    @property
    def name(self) -> str:
        """Name of the node's control groups; another directory is another cluster."""
        return f"sluice-cluster-{hashlib.sha256(str(self.directory).encode()).hexdigest()[:8]}"

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.down()

    # --- life ---

    def up(self) -> None:
        """Starts it, with what the directory has from an earlier time. Returns when the node is ready."""
        if os.geteuid() != 0:
            raise ClusterError("a node needs root: namespaces, mounts and control groups")
        if self.alive():
            raise ClusterError(f"{self.directory}: it is up already")
        begin_s = time.monotonic()
        self._lay_out()
        self._boot()
        self._start_all(begin_s)

    def down(self, keep: bool = False) -> None:
        """A power cut. `keep`: the disk stays for another `up`; else nothing stays."""
        holder = self._number("holder.pid")
        for pid in (holder, self._number("init.pid")):
            if pid and self._is_ours(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._wait("the node is gone", lambda: not self.alive(), 30)
        groups = self.directory / "cgroups"
        if groups.exists():
            left = cgroups.remove([Path(line) for line in groups.read_text().splitlines()])
            if left:
                raise ClusterError(f"control groups that could not be removed: {left}")
            groups.unlink()
        for name in ("holder.pid", "init.pid"):
            (self.directory / name).unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def alive(self) -> bool:
        return any(
            pid and self._is_ours(pid)
            for pid in (self._number("holder.pid"), self._number("init.pid"))
        )

    def reboot(self) -> None:
        """Power cut and up again, with the same disk."""
        self.down(keep=True)
        self.up()

    # --- on the node ---

    def command(self, *words: str | Path) -> list[str]:
        """Command line that runs `words` on the node, for subprocess."""
        target = str(self._number("init.pid"))
        inside = ("-m", "-n", "-p", "-u", "-i", "-C")
        return ["nsenter", "-t", target, *inside, "--", *map(str, words)]

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if key in ("HOME", "TERM", "LANG")}
        helm = {
            f"HELM_{one}_HOME": str(self.directory / "helm") for one in ("CACHE", "CONFIG", "DATA")
        }
        return {
            **kept,
            **helm,
            "PATH": self.programs.path,
            "KUBECONFIG": str(self.pki.kubeconfig("admin")),
            "KUBECACHEDIR": str(self.directory / "kubecache"),
            "CONTAINERD_ADDRESS": settings.CONTAINERD_SOCKET,
            "CONTAINERD_NAMESPACE": "k8s.io",
            "PYTHONPATH": str(REPO),
            "RUNC": str(self.programs.debian / "usr/sbin/runc"),
        }

    def run(
        self,
        *words: str | Path,
        given: str | None = None,
        check: bool = True,
        timeout_s: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words),
            env=self.environment(),
            input=given,
            stdin=None if given is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            shown = " ".join(map(str, words))
            raise ClusterError(
                f"{shown}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}"
            )
        return done

    def kubectl(self, *words: str | Path, given: str | None = None, timeout_s: float = 300) -> str:
        return self.run("kubectl", *words, given=given, timeout_s=timeout_s).stdout

    def import_image(self, archive: Path) -> list[str]:
        """Import an image as an administrator of an air-gapped node does; returns the new names it
        has then."""
        before = set(self._image_names())
        self.run("ctr", "images", "import", archive, timeout_s=600)
        return sorted(set(self._image_names()) - before)

    def _image_names(self) -> list[str]:
        return self.run("ctr", "images", "list", "-q").stdout.split()

    def start(self, name: str) -> None:
        """etcd, containerd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet or services."""
        answer = self.supervisor(
            start=name,
            command=self._commands()[name],
            log=str(self.directory / "log" / f"{name}.log"),
            environment=self.environment(),
        )
        if "error" in answer:
            raise ClusterError(f"{name}: {answer['error']}")

    def stop(self, name: str, with_signal: int = signal.SIGTERM) -> None:
        if not self.supervisor(stop=name, signal=with_signal, wait_s=30)["stopped"]:
            raise ClusterError(f"{name} did not end: {self.log(name)[-500:]}")

    def restart(self, name: str, with_signal: int = signal.SIGTERM) -> None:
        self.stop(name, with_signal)
        self.start(name)

    def set_gates(self, gates: Mapping[str, bool]) -> None:
        """The kubelet with these feature gates, from now on."""
        self.gates = dict(gates)
        (self.directory / "kubelet.json").write_text(settings.kubelet(self._settings()))
        self.restart("kubelet")
        self._wait("the kubelet is back", self.kubelet_answers)

    def serves_pods_api(self) -> bool:
        """True if this release's kubelet has the pods API, behind a gate or not."""
        return "pods_api_gate" in json.loads(self.run("constants").stdout)

    def kubelet_answers(self) -> bool:
        return self.page("127.0.0.1", 10248, "/healthz") == "ok"

    def supervisor(self, **asked: Any) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(120)
            connection.connect(str(self.directory / "init.sock"))
            with connection.makefile("rw") as lines:
                lines.write(json.dumps(asked) + "\n")
                lines.flush()
                answer: dict[str, Any] = json.loads(lines.readline())
                return answer

    def log(self, name: str) -> str:
        path = self.directory / "log" / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def node_ready(self) -> bool:
        node = self.api.find(f"/api/v1/nodes/{self.place.hostname}")
        conditions = (node or {}).get("status", {}).get("conditions", [])
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    # --- how it starts ---

    @abstractmethod
    def _certify(self) -> None:
        """Writes the certificates that the machine's programs need; those that are there stay."""

    @abstractmethod
    def _others(self) -> dict[str, str]:
        """Addresses of other nodes by name, for its /etc/hosts."""

    @abstractmethod
    def _start_all(self, begin_s: float) -> None:
        """Returns when the node is ready."""

    @property
    @abstractmethod
    def _api_host(self) -> str:
        """Address of the API server from here."""

    def _lay_out(self) -> None:
        for name in ("log", "cni", "disk", "volumes", "etcd"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._certify()
        node = self._settings()
        (self.directory / "containerd.toml").write_text(settings.containerd(node))
        (self.directory / "kubelet.json").write_text(settings.kubelet(node))
        (self.directory / "cni" / "10-bridge.conflist").write_text(settings.network(node))
        runtime = self.directory / "nvidia-runtime"
        shutil.copy(Path(__file__).parent / "runtime_class.py", runtime)
        runtime.chmod(0o755)
        described = {
            "hostname": self.place.hostname,
            "others": self._others(),
            "dns": settings.DNS_IP,
            "node_ip": self.place.ip,
            "gpus": gpu_count(self.gpus) if self.driver else 0,
            "cgroup_v2": cgroups.is_v2(),
        }
        (self.directory / "node.json").write_text(json.dumps(described))

    def _boot(self) -> None:
        groups = cgroups.create(self.name)
        (self.directory / "cgroups").write_text("".join(f"{path}\n" for path in groups))
        (self.directory / "init.sock").unlink(missing_ok=True)
        first = [sys.executable, "-m", "tests.cluster.machine.init", str(self.directory)]
        unshare = ["unshare", *NAMESPACES, "--fork", "--kill-child=SIGKILL", "--mount-proc", *first]
        # The console's lines stay from one boot to the next.
        with (self.directory / "log" / "init.log").open("ab") as log:
            holder = subprocess.Popen(
                unshare,
                env={**self.environment(), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
                cwd=REPO,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: cgroups.join(groups),
            )
        (self.directory / "holder.pid").write_text(str(holder.pid))
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")

        def child() -> int | None:
            if holder.poll() is not None:
                raise ClusterError(f"the node did not boot: {self.log('init')[-1500:]}")
            found = children.read_text().split()
            return int(found[0]) if found else None

        init = self._wait("the node's first process", child, 20)
        (self.directory / "init.pid").write_text(str(init))
        if cgroups.is_v2():
            self._wait("it has a group for itself", lambda: (groups[0] / "node").is_dir(), 20)
            cgroups.join([groups[0] / "node"], holder.pid)

        def listens() -> bool:
            child()
            return bool(self.supervisor(status=True))

        self._wait("it listens", listens, 60)

    def _start_kubelet(self) -> None:
        """With the images that every pod needs; returns when the node is ready."""
        self._wait("containerd", lambda: self.run("ctr", "version", check=False).returncode == 0)
        if not (self.directory / "imported").exists():
            for archive in images.made(self.programs):
                self.import_image(archive)
            (self.directory / "imported").touch()
        self.start("kubelet")
        self._wait("the node is ready", self.node_ready)

    def install_driver(self) -> None:
        """Libraries, the state that stands for the cards, and a CDI specification, as they are after a GPU node has booted."""
        package = self.directory / "driver"
        package.mkdir(exist_ok=True)
        for source, name in (
            (SIM / "libcuda.so.1", ""),
            (SIM / "libnvidia-ml.so.1", ""),
            (TENANT, "tenant"),
        ):
            shutil.copy(source, package / (name or source.name))
        place = (
            "--libraries",
            f"{DRIVER}/lib",
            "--state",
            "/run/nvidia/state",
            "--package",
            package,
        )
        self.run("python3", "-I", SIM_NODE, "--node", self.place.hostname, *place, "up", self.gpus)

    def _label(self) -> None:
        """The label that NVIDIA's feature discovery gives a node with GPUs."""
        label = {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}
        self.api.patch(f"/api/v1/nodes/{self.place.hostname}", label)

    def _settings(self) -> settings.NodeSettings:
        return settings.NodeSettings(
            self.directory, self.programs, self.pki, self.gates, self.place, self.lost_s
        )

    def _commands(self) -> dict[str, list[str]]:
        module = [sys.executable, "-m", "tests.cluster.machine.services"]
        services = [*module, str(self.pki.directory), self._api_host]
        return {**settings.commands(self._settings()), "services": services}

    # --- small things ---

    def dial(self, host: str, port: int) -> socket.socket:
        """A connection made on the node. A socket stays in the network in which it was made, so a thread of its own goes
        there, makes it, and ends. Raises OSError."""
        answer: list[socket.socket | OSError] = []

        def inside() -> None:
            try:
                with open(f"/proc/{self._number('init.pid')}/ns/net") as namespace:
                    if _libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns")
                answer.append(socket.create_connection((host, port), 30))
            except OSError as error:
                answer.append(error)

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if isinstance(answer[0], OSError):
            raise answer[0]
        return answer[0]

    def page(self, host: str, port: int, path: str = "/metrics") -> str:
        """Read over HTTP on the node. Raises OSError."""
        connection = http.client.HTTPConnection(host, port, timeout=20)
        connection.sock = self.dial(host, port)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != 200:
                raise OSError(f"{path}: HTTP {answer.status}")
            return answer.read().decode()
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error}") from error
        finally:
            connection.close()

    def root(self) -> Path:
        """The node's file system, from here."""
        return Path(f"/proc/{self._number('init.pid')}/root")

    def _number(self, name: str) -> int:
        with suppress(OSError, ValueError):
            return int((self.directory / name).read_text())
        return 0

    def _is_ours(self, pid: int) -> bool:
        """A pid may belong to another process by now."""
        with suppress(OSError):
            return str(self.directory).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def _wait(self, what: str, condition: Callable[[], T | None], deadline_s: float = READY_S) -> T:
        end_s = time.monotonic() + deadline_s
        last: Exception | None = None
        while time.monotonic() < end_s:
            try:
                found = condition()
                if found:
                    return found
            except (OSError, ApiError) as error:
                last = error
            time.sleep(0.05)
        logs = "".join(
            f"\n{path.name}: {path.read_text(errors='replace')[-600:]}"
            for path in sorted((self.directory / "log").glob("*.log"))
        )
        raise ClusterError(f"not within {deadline_s:g} s: {what} ({last}){logs}")


def gpu_count(gpus: str) -> int:
    """Number of GPUs in a text like `2xh100-80gb,a100-40gb`."""
    found = 0
    for one in gpus.split(","):
        times, mark, _ = one.partition("x")
        found += int(times) if mark and times.isdecimal() else 1
    return found
