"""The three ways by which a container runtime learns of a grant (docs/kubernetes.md), each from Allocate to a process that
is held to its cap; test_pods.py has the rest of a pod's life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.pods.program import TRY
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import Node, until
from tests.kit.places import REPO, SIM
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="mount namespaces need root"),
]
MIB = 2**20
CAP_MIB = 2048
CAPPED = {"init": 0, "total": CAP_MIB * MIB, "big": 2}
DRIVERS = "sluice.dev-driver_*.json"
STRATEGIES = ("cdi-cri", "cdi-annotations", "envvar")


class Kubelet:
    """`python -m tests.kit.fakes.kubelet`, as an outside test uses it."""

    def __init__(self, directory: Path) -> None:
        self.pods: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.fakes.kubelet", "--dir", str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPO,
        )
        assert self._line() == {"ready": True}

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line: dict[str, Any] = json.loads(self._process.stdout.readline())
        return line

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._line()

    def start(self, pod: str) -> dict[str, Any]:
        """A pod with one container; what the runtime is handed."""
        admitted = self.ask(do="admit", pod={"name": pod})
        assert "error" not in admitted, admitted
        self.pods.append(admitted["uid"])
        started = self.ask(do="start_container", uid=admitted["uid"], container="main")
        assert "error" not in started, started
        return {"uid": admitted["uid"], **started["answer"]}

    def end_all(self) -> None:
        for uid in self.pods:
            self.ask(do="end", uid=uid)
        self.pods = []

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Cluster:
    def __init__(self, directory: Path, strategy: str) -> None:
        self.strategy = strategy
        self.cdi = directory / "cdi"
        self.kubelet_dir = directory / "kubelet"
        self.node = Node(
            directory / "node",
            gpus="1xh100-80gb",
            settings=f"""
[kubelet]
enabled = true
directory = "{self.kubelet_dir}"
cdi_dir = "{self.cdi}"
strategy = "{strategy}"
limits = ["defaults"]
default_memory_mib = {CAP_MIB}
default_cores_percent = 30
reconcile_s = 0.2
""",
        )
        self.kubelet = Kubelet(self.kubelet_dir)

    def start(self) -> None:
        self.node.start()
        (gpu,) = self.node.info()["gpus"]
        libraries = {
            str(SIM / name): str(SIM / name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        }
        write_installed(self.cdi, installed_spec([gpu["uuid"]], libraries))
        if self.strategy != "envvar":
            until("what all share is written", lambda: list(self.cdi.glob(DRIVERS)))
        until("the plugin is registered", lambda: self.kubelet.ask(do="devices")["devices"])
        if self.strategy != "envvar":
            until("what all share is given", self.gives_the_driver)

    def gives_the_driver(self) -> bool:
        """A file's name is seen before its writer is sure that it is on the disk, and only then are
        pods given it."""
        answer = self.kubelet.start("before-all")
        self.kubelet.end_all()
        return names_the_driver(answer)

    def command(self, answer: dict[str, Any], *command: str | Path) -> list[str]:
        gpu = f"{self.node.directory}/gpu"
        return [
            *(sys.executable, "-m", "tests.kit.fakes.runtime", "run"),
            *("--cdi-dir", str(self.cdi), "--answer", json.dumps(answer)),
            *(("--nvidia-runtime",) if self.strategy == "envvar" else ()),
            *("--volume", f"{gpu}:{gpu}", "--volume", f"{REPO}:{REPO}:ro"),
            *("--env", f"SLUICE_SIM_DIR={gpu}", "--env", f"SLUICE_SIM_GPUS={self.node.gpus}"),
            *("--env", f"LD_LIBRARY_PATH={SIM}"),
            "--",
            *map(str, command),
        ]

    def run(self, answer: dict[str, Any], *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(answer, *command), capture_output=True, text=True, cwd=REPO, timeout=120
        )

    def stop(self) -> None:
        self.kubelet.stop()
        self.node.stop()


@pytest.fixture(scope="module", params=STRATEGIES)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with workplace() as directory:
        made = Cluster(directory, request.param)
        try:
            made.start()
            yield made
        finally:
            made.stop()


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    """Whatever a test did: when its pods are over, so is everything that was made for them."""
    yield
    cluster.kubelet.end_all()
    until("the grants are over", lambda: not cluster.node.grants())
    until("nothing is left of them", lambda: not left_behind(cluster))


def attempt(cluster: Cluster, answer: dict[str, Any], library: str | Path) -> dict[str, Any]:
    done = cluster.run(answer, sys.executable, "-c", TRY, library)
    assert done.returncode == 0, done.stderr
    got: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return got


def test_a_pod_runs_inside_of_its_grant_however_often_it_starts(cluster: Cluster) -> None:
    answer = cluster.kubelet.start("capped")
    assert attempt(cluster, answer, "libcuda.so.1") == CAPPED
    assert attempt(cluster, answer, "libcuda.so.1") == CAPPED, "the container starts again"
    (grant,) = cluster.node.grants()
    assert grant["name"] == "default/capped/main"
    assert names_the_driver(answer) is (cluster.strategy != "envvar")


def names_the_driver(answer: dict[str, Any]) -> bool:
    named = [*answer["cdi_devices"], *answer["annotations"].values()]
    return any("sluice.dev/driver=" in one for one in named)


def left_behind(cluster: Cluster) -> list[str]:
    """CDI files and bindings left by grants; the newest file that containers share stays for the
    next ones and does not count."""
    names = {path.name for path in cluster.cdi.iterdir()} - {"nvidia.yaml"}
    drivers = {path.name for path in cluster.cdi.glob(DRIVERS)}
    ours = sorted(names - drivers if len(drivers) == 1 else names)
    links = cluster.node.directory / "run" / "bindings"
    return ours + ([path.name for path in links.iterdir()] if links.is_dir() else [])


def test_the_driver_by_its_path_is_ours_too_where_the_runtime_knows_cdi(cluster: Cluster) -> None:
    answer = cluster.kubelet.start("by-path")
    got = attempt(cluster, answer, SIM / "libcuda.so.1")
    if cluster.strategy == "envvar":
        assert got["big"] == 0, "what docs/kubernetes.md warns of"
    else:
        assert got == CAPPED


def test_the_limits_cannot_be_written_and_the_preload_file_is_read_only(cluster: Cluster) -> None:
    answer = cluster.kubelet.start("curious")
    done = cluster.run(
        answer,
        "sh",
        "-c",
        "for f in /run/sluice/grant/policy.shm /run/sluice/lib/libsluice.so /etc/ld.so.preload;"
        " do (: >> $f) || echo refused; done; (: >> /run/sluice/grant/usage.shm) && echo usage;"
        " cat /etc/ld.so.preload; ls /run/sluice/grant",
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["refused"] * 3, done
    assert lines[3] == "usage"
    assert lines[4] == "/run/sluice/lib/libsluice.so"
    assert {"policy.shm", "usage.shm"} <= set(lines[5:])
