"""A container's own cgroup, its hook, the daemon and the driver: the wall stands before the image's first instruction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.processes.cgroups import unified_root
from tests.kit.node import until
from tests.kit.places import REPO
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

ROOT = unified_root()
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or ROOT is None,
        reason="THIS HOST HAS NO UNIFIED CGROUPS, OR WE ARE NOT ROOT: not tried",
    ),
]
MIB = 1 << 20
EVADE = """
import ctypes, json, shutil
shutil.copyfile("/run/sluice/driver/libcuda.so.1", "/tmp/own.so")
cuda = ctypes.CDLL("/tmp/own.so")
context, p, got = ctypes.c_void_p(), ctypes.c_uint64(), 0
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
while got < 8192 and cuda.cuMemAlloc_v2(ctypes.byref(p), ctypes.c_size_t(64 << 20)) == 0:
    got += 64
print(json.dumps({"got_mib": got}), flush=True)
input()
"""


@pytest.fixture
def place() -> Iterator[PodNode]:
    with workplace() as directory:
        (directory / "gpu").mkdir()
        (directory / "gpu" / "control").write_text("memory_limits=dmem\n")
        with pod_node(directory) as made:
            yield made


@pytest.fixture
def base() -> Iterator[Path]:
    assert ROOT is not None
    made = ROOT / f"sluice-walled-{os.getpid()}"
    yield made
    for where, _below, _files in os.walk(made, topdown=False):
        until(f"{where} is empty", lambda path=where: os.rmdir(path) is None)  # type: ignore[misc]  # bound now


def start(place: PodNode, devices: list[str], cgroup: Path) -> subprocess.Popen[str]:
    gpu = place.node.directory / "gpu"
    flags = ["--cdi-dir", str(place.cdi_dir), "--cgroup", str(cgroup)]
    for device in devices:
        flags += ["--device", device]
    # As runtimes mount it.
    flags += ["--volume", f"{gpu}:{gpu}", "--volume", f"{ROOT}:/sys/fs/cgroup:ro"]
    # The container has a /tmp of its own, and Python may come from a checkout below /tmp.
    flags += ["--volume", f"{REPO}:{REPO}:ro"]
    for name, value in {"SLUICE_SIM_DIR": str(gpu), "SLUICE_SIM_GPUS": place.node.gpus}.items():
        flags += ["--env", f"{name}={value}"]
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.kit.fakes.runtime",
            "run",
            *flags,
            "--",
            sys.executable,
            "-c",
            EVADE,
        ],
        cwd=REPO,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_with_a_driver_of_its_own_is_stopped_by_the_driver(
    place: PodNode, base: Path
) -> None:
    uid = place.kubelet.admit("evader", gpu=1, gpumem=2000, gpucores=30)
    devices = place.kubelet.cdi_devices(uid)
    cgroup = base / "kubepods" / f"pod{uid}" / "main"
    process = start(place, devices, cgroup)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    got = json.loads(line)["got_mib"]
    (grant,) = place.node.grants()
    assert grant["processes"] == 0, "no process has registered"
    assert grant["devices"][0]["wall_bytes"] == (2000 + 64) * MIB
    assert 0 < got <= 2064 - 520, "its context counts as well"
    process.communicate(timeout=120)
    place.kubelet.do("end", uid=uid)
    until("the grant is over", lambda: place.node.grants() == [])
    around = base / "kubepods"
    until("no memory is guaranteed any more", lambda: _soft(place, around) == 0)


def _soft(place: PodNode, cgroup: Path) -> int:
    gpus = [gpu["uuid"] for gpu in place.node.info()["gpus"]]
    total = 0
    for gpu in gpus:
        done = subprocess.run(
            [sys.executable, "-m", "nodeagent.adapters.nvml.walls_child"],
            input=json.dumps({"do": "read", "gpu": gpu, "cgroups": [str(cgroup)]}) + "\n",
            env=place.node.on_the_driver(),
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        total += json.loads(done.stdout)["readings"][0]["soft_bytes"]
    return total
