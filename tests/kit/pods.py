"""A node with a kubelet: simulated GPUs, the real daemon, the kubelet and the runtime of tests.kit.fakes, no
Kubernetes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import Node, running, until
from tests.kit.places import REPO, SIM

RESOURCE = "nvidia.com/gpu"


class Kubelet:
    """`python -m tests.kit.fakes.kubelet`, one command at a time."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fakes.kubelet", "--dir", str(directory), *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(directory.parent / "kubelet.log").open("ab"),
            text=True,
            cwd=REPO,
        )
        assert self._answer() == {"ready": True}

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def do(self, what: str, **more: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def healthy(self) -> list[str]:
        return [one for one, healthy in self.do("devices")["devices"].items() if healthy]

    def admit(self, name: str, **limits: int) -> str:
        """A pod with one container, `main`; its UID. `limits` in HAMi's names: gpumem, gpucores."""
        asked = {f"nvidia.com/{key}": str(amount) for key, amount in limits.items()}
        containers = [{"name": "main", "limits": asked}]
        answer = self.do("admit", pod={"name": name, "containers": containers})
        assert "error" not in answer, answer
        return str(answer["uid"])

    def cdi_devices(self, uid: str, container: str = "main") -> list[str]:
        """Starts the container; the CDI devices the runtime is given, the grant's own last."""
        answer = self.do("start_container", uid=uid, container=container)
        assert "error" not in answer, answer
        devices: list[str] = answer["answer"]["cdi_devices"]
        return devices

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class PodNode:
    node: Node
    kubelet: Kubelet
    cdi_dir: Path

    def install(self, **others: Path) -> None:
        """The driver's CDI specification, with more libraries by name."""
        libraries = {name: SIM / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")} | others
        write_installed(
            self.cdi_dir,
            installed_spec(
                [str(gpu["uuid"]) for gpu in self.node.info()["gpus"]],
                {f"/usr/lib64/{name}": str(path) for name, path in libraries.items()},
            ),
        )


@contextlib.contextmanager
def pod_node(
    directory: Path,
    gpus: str = "2xh100-80gb",
    settings: str = "",
    flags: str = "--pods-api",
    devices: int = 20,
    reconcile_s: float = 0.5,
) -> Iterator[PodNode]:
    kubelet_dir, cdi_dir = directory / "kubelet", directory / "cdi"
    section = f'[kubelet]\nenabled = true\ndirectory = "{kubelet_dir}"\ncdi_dir = "{cdi_dir}"\nreconcile_s = {reconcile_s}\n{settings}'
    kubelet_dir.mkdir(parents=True)
    kubelet = Kubelet(kubelet_dir, *flags.split())
    try:
        with running(directory, gpus=gpus, settings=section) as node:
            made = PodNode(node, kubelet, cdi_dir)
            made.install()
            until("what all share is written", lambda: list(cdi_dir.glob("sluice.dev-driver_*")))
            until("the kubelet has the devices", lambda: len(kubelet.healthy()) >= devices)
            yield made
    finally:
        kubelet.stop()
