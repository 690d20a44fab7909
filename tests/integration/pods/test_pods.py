"""Pods from the kubelet to the GPU: Allocate, PreStartContainer, CDI, and a process that runs in its grant. The real
daemon on simulated GPUs, a kubelet and a runtime that behave, no Kubernetes; caps are measured from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.integration.pods.containers import container, result
from tests.kit.measure import shares
from tests.kit.node import soon_ns, until
from tests.kit.places import AT_REST, TENANT
from tests.kit.pods import PodNode, pod_node
from tests.kit.workplace import workplace

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="making containers needs root"),
]
GIB = 2**30
MS = "1000000"
SHARE_TOLERANCE = 0.05


@pytest.fixture
def place() -> Iterator[PodNode]:
    with workplace() as directory, pod_node(directory) as made:
        yield made


def used_bytes(place: PodNode, uuid: str) -> int:
    """Memory used on a GPU in bytes, as the device model itself counts it."""
    gpus = {gpu["uuid"]: gpu for gpu in place.node.info()["gpus"]}
    return int(gpus[uuid]["memory_used_bytes"])


def test_two_pods_share_a_gpu_as_they_asked(place: PodNode) -> None:
    given = {
        cores: place.kubelet.cdi_devices(place.kubelet.admit(name, gpumem=8192, gpucores=cores))
        for name, cores in (("small", 30), ("large", 70))
    }
    grants = place.node.grants()
    assert sorted(grant["name"] for grant in grants) == ["default/large/main", "default/small/main"]
    assert len({grant["devices"][0]["gpu"] for grant in grants}) == 1, "packed onto one GPU"

    def measure() -> list[float]:
        begin = place.node.begin
        begin.unlink(missing_ok=True)
        work = ("--kernel-ns", MS, "--warm", "2", "--seconds", "4", "--begin", str(begin))
        jobs = [
            container(place, devices, str(TENANT), *work, measured=True)
            for devices in given.values()
        ]
        place.node.begin_when(len(jobs))
        return [result(job)["share_ratio"] for job in jobs]

    shares(measure, [0.30, 0.70], SHARE_TOLERANCE)


def test_a_pod_cannot_have_more_memory_than_it_asked_for(place: PodNode) -> None:
    uid = place.kubelet.admit("greedy", gpumem=2048, gpucores=50)
    devices = place.kubelet.cdi_devices(uid)
    grant = place.node.grant("default/greedy/main")
    assert grant is not None
    uuid = grant["devices"][0]["gpu"]
    before = used_bytes(place, uuid)
    job = container(
        place,
        devices,
        str(TENANT),
        "--launches",
        "5",
        "--hold",
        str(GIB),
        "--alloc",
        str(2 * GIB),
        "--idle",
        "3",
    )
    held = until(
        "the tenant holds its GiB",
        lambda: used_bytes(place, uuid) - before >= GIB and used_bytes(place, uuid),
    )
    assert held - before <= 2 * GIB
    found = result(job)
    assert found["alloc_result"] == 2, "CUDA_ERROR_OUT_OF_MEMORY"
    assert found["total_bytes"] == 2 * GIB, "sees its share, not the card"


def test_without_the_file_of_its_grant_a_container_does_not_start(place: PodNode) -> None:
    job = container(place, ["sluice.dev/grant=" + "0" * 32], "/bin/true")
    _, err = job.communicate(timeout=120)
    assert job.returncode == 125
    assert "sluice.dev/grant=" in err


def test_clearing_the_environment_changes_nothing(place: PodNode) -> None:
    uid = place.kubelet.admit("sly", gpumem=1024)
    devices = place.kubelet.cdi_devices(uid)
    keep = [f"SLUICE_SIM_DIR={place.node.directory / 'gpu'}", f"SLUICE_SIM_GPUS={place.node.gpus}"]
    job = container(
        place, devices, "env", "-i", *keep, str(TENANT), "--launches", "1", "--alloc", str(2 * GIB)
    )
    assert result(job)["alloc_result"] == 2


def test_everything_is_given_back_when_the_pod_is_gone(place: PodNode) -> None:
    uid = place.kubelet.admit("short", gpumem=1024)
    devices = place.kubelet.cdi_devices(uid)
    assert result(container(place, devices, str(TENANT), "--launches", "1"))
    assert place.node.grant("default/short/main")
    place.kubelet.do("end", uid=uid)
    until("the grant is gone", lambda: place.node.grant("default/short/main") is None)
    until("its file is gone", lambda: not list(place.cdi_dir.glob("sluice.dev-grant_*")))
    assert "sluice_kubelet_releases_total 1" in place.node.metrics()


def test_pods_run_on_and_restart_while_the_daemon_and_the_kubelet_come_and_go(
    place: PodNode,
) -> None:
    uid = place.kubelet.admit("steady", gpumem=1024, gpucores=40)
    devices = place.kubelet.cdi_devices(uid)
    grant = place.node.grant("default/steady/main")
    assert grant is not None
    work = ("--kernel-ns", MS, "--warm", "1", "--seconds", "3600", "--report", "1")
    job = container(place, devices, str(TENANT), *work, measured=True)
    until(
        "it is registered",
        lambda: (place.node.grant("default/steady/main") or {}).get("processes") == 1,
    )
    place.node.kill_daemon()
    place.node.start()
    place.kubelet.do("restart")
    until("the devices are back", lambda: len(place.kubelet.healthy()) == 20)
    assert place.kubelet.cdi_devices(uid) == devices
    again = place.node.grant("default/steady/main")
    assert again is not None
    assert again["grant"] == grant["grant"]
    assert again["processes"] == 1
    assert job.stdout is not None
    lines = job.stdout
    shares(lambda: [json.loads(lines.readline())["share_ratio"]], [0.4], SHARE_TOLERANCE)
    assert job.poll() is None
    job.terminate()
    job.communicate()


def test_a_container_starts_again_after_an_upgrade_of_the_driver_and_after_a_reboot(
    place: PodNode,
) -> None:
    """Under the names that the kubelet has of it: the old driver's libraries are gone."""
    library = place.node.directory / "libnvidia-old.so.570"
    library.touch()
    first = place.kubelet.cdi_devices(place.kubelet.admit("first", gpumem=1024))
    place.install(libnvidia_old=library)
    found = until("a pod names what was installed last", lambda: _pod_beyond(place, first[0]))
    uid, devices = found
    assert capped(place, devices)
    place.install()
    library.unlink()
    assert place.kubelet.cdi_devices(uid) == devices
    assert capped(place, devices)
    place.node.kill_daemon()
    for path in place.cdi_dir.glob("sluice.dev-*"):
        path.unlink()
    place.node.start()
    until("the devices are back", lambda: len(place.kubelet.healthy()) == 20)
    assert place.kubelet.cdi_devices(uid) == devices
    assert capped(place, devices)


def _pod_beyond(place: PodNode, driver: str) -> tuple[str, list[str]] | None:
    """A pod that was given another driver; what was given to it."""
    uid = place.kubelet.admit(f"pod-{soon_ns(0)}", gpumem=1024)
    devices = place.kubelet.cdi_devices(uid)
    if len(devices) == 2 and devices[0] != driver:
        return uid, devices
    place.kubelet.do("end", uid=uid)
    return None


def capped(place: PodNode, devices: Sequence[str]) -> bool:
    """True if a container with these devices runs in a grant of one GiB."""
    job = container(place, devices, str(TENANT), "--launches", "1", "--alloc", str(2 * GIB))
    found = result(job)
    return (found["alloc_result"], found["total_bytes"]) == (2, GIB)


def test_a_pod_that_came_before_the_driver_has_all_of_it_in_its_own_file(place: PodNode) -> None:
    """So have the pods of earlier releases, whose answers name the grant alone."""
    (place.cdi_dir / "nvidia.yaml").unlink()
    place.node.kill_daemon()
    place.node.start()
    until("the devices are back", lambda: len(place.kubelet.healthy()) == 20)
    uid = place.kubelet.admit("early", gpumem=1024)
    place.install()
    (device,) = place.kubelet.cdi_devices(uid)
    assert capped(place, [device])
    until("others share it", lambda: _pod_beyond(place, ""))
    assert place.kubelet.cdi_devices(uid) == [device]
    assert capped(place, [device])


def test_a_sick_gpu_is_withdrawn_from_the_kubelet(place: PodNode) -> None:
    assert len(place.kubelet.healthy()) == 20
    uuid = str(place.node.info()["gpus"][0]["uuid"])
    (place.node.directory / "gpu" / "control").write_text("gpu_lost=0\n")
    until("its slots are unhealthy", lambda: len(place.kubelet.healthy()) == 10)
    assert not any(one.startswith(uuid) for one in place.kubelet.healthy())


def test_a_mig_instance_is_a_containers_own() -> None:
    resource = "nvidia.com/mig-1g.10gb"
    with (
        workplace() as directory,
        pod_node(
            directory,
            gpus="h100-80gb:1g.10gb+3g.40gb",
            settings='mode = "mig"\nmig_strategy = "mixed"\n',
            flags=f"--pods-api --resource {resource}",
            devices=1,
        ) as place,
    ):
        uid = place.kubelet.admit("small")
        devices = place.kubelet.cdi_devices(uid)
        grant = place.node.grant("default/small/main")
        assert grant is not None
        uuid = grant["devices"][0]["gpu"]
        assert place.kubelet.healthy() == [f"{uuid}::0"]
        # A real container has the device nodes of this instance alone.
        visible = {"CUDA_VISIBLE_DEVICES": uuid}
        found = result(
            container(
                place,
                devices,
                str(TENANT),
                "--launches",
                "1",
                "--alloc",
                str(20 * GIB),
                env=visible,
            )
        )
        assert found["total_bytes"] == grant["devices"][0]["memory_limit_bytes"] == 9984 << 20
        assert found["alloc_result"] == 2

        def measure() -> list[float]:
            work = ("--kernel-ns", MS, "--warm", "1", "--seconds", "1")
            job = container(place, devices, str(TENANT), *work, env=visible, measured=True)
            return [result(job)["share_ratio"]]

        shares(measure, [1.0], SHARE_TOLERANCE)  # the instance is its own


PROCESSES = "[(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(gpu)]"


def users(place: PodNode, uuid: str, *before: str) -> list[tuple[int, int]]:
    """Processes on the GPU and the memory each uses, as NVML shows them to the caller."""
    script = (
        "import json, pynvml as n\nn.nvmlInit()\n"
        f"gpu = n.nvmlDeviceGetHandleByUUID({uuid!r})\nprint(json.dumps({PROCESSES}))"
    )
    done = subprocess.run(
        [*before, sys.executable, "-c", script],
        env=place.node.on_the_driver(),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [(pid, used) for pid, used in json.loads(done.stdout)]


def test_a_container_is_its_grants_by_whatever_pid_it_goes() -> None:
    """Its own namespace calls the process 1 and the daemon's does not: NVML tells each its own number. The daemon finds
    it in its grant, its context is charged, and it is not suspected, while a program without a grant is found by the same checks.
    """
    policy = '[detection]\nbare_metal = "contain"\n'
    with workplace() as directory, pod_node(directory, settings=policy) as place:
        devices = place.kubelet.cdi_devices(place.kubelet.admit("boxed", gpumem=4096, gpucores=50))
        (device,) = (place.node.grant("default/boxed/main") or {})["devices"]
        job = container(
            place, devices, str(TENANT), "--launches", "5", "--hold", str(GIB), "--idle", "3600"
        )
        ((pid, used),) = until(
            "it holds its memory",
            lambda: [one for one in users(place, device["gpu"]) if one[1] > GIB],
        )
        numbers = _numbers_of(pid)
        assert numbers[0] == pid
        assert numbers[-1] == 1
        assert users(place, device["gpu"], "nsenter", "--target", str(pid), "--pid") == [(1, used)]
        grant = until(
            "the daemon has read its use", lambda: _in_use(place.node.grant("default/boxed/main"))
        )
        (held,) = grant["devices"]
        assert grant["processes"] == 1
        assert held["memory_used_bytes"] == used, "to the byte: the context is in it"
        intruder = place.node.run_bare("bare", *AT_REST).process
        until(
            "who has no grant is stopped",
            lambda: _state(intruder.pid) == "T",
        )
        assert [e["pid"] for e in place.node.cli_json("events") if e["pid"] != intruder.pid] == []
        assert _state(pid) not in "Tt"
        assert [one for one in users(place, device["gpu"]) if one[0] == pid] == [(pid, used)]
        intruder.kill()
        job.kill()
        job.communicate(timeout=60)


def _in_use(grant: dict[str, Any] | None) -> dict[str, Any] | None:
    """The grant once the daemon has read that it uses more than 1 GiB: it reads every 400 ms, so some time after the allocation."""
    return grant if grant and grant["devices"][0]["memory_used_bytes"] > GIB else None


def _numbers_of(pid: int) -> list[int]:
    """PIDs of a process from this namespace down to its own."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return [int(n) for line in status if line.startswith("NSpid:") for n in line.split()[1:]]


def _state(pid: int) -> str:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        return stat.read().rpartition(") ")[2][0]
