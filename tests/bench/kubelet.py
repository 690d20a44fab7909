"""The kubelet's calls, as the kubelet sees them: a real daemon with 8 simulated GPUs and a kubelet over real sockets.

The simplest plugin answers Allocate from memory, with no ledger: what it takes over the same sockets is the baseline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from nodeagent import native
from nodeagent.adapters.kubelet.device_plugin import PluginServer
from nodeagent.adapters.kubelet.wire import KubeletWire
from nodeagent.ports.containers import ContainerAnswer
from nodeagent.ports.kubelet import PreferenceAsk, SlotDevice
from tests.bench.entries import Entry, entry, quantile
from tests.kit.fakes.kubelet import Container, FakeKubelet, Pod
from tests.kit.fakes.nvidia_cdi import installed_spec, write_installed
from tests.kit.node import Node, running, until
from tests.kit.places import SIM
from tests.kit.workplace import workplace

RESOURCE = "nvidia.com/gpu"
GPUS, SLOTS, MANY_SLOTS, GRANTS = 8, 100, 200, 80
OTHER_LIBRARIES = [f"/usr/lib64/libnvidia-{number}.so.570.86.15" for number in range(38)]
"""Libraries besides libcuda and NVML: the driver has some forty, and the runtime reads each
entry."""
SHAPE = (Container("main", limits={"nvidia.com/gpumem": "512", "nvidia.com/gpucores": "1"}),)


class Simplest:
    """A plugin that remembers nothing."""

    def __init__(self) -> None:
        uuids = [f"GPU-{i:08x}-1111-2222-3333-444444444444" for i in range(GPUS)]
        self._devices = tuple(
            SlotDevice(f"{uuid}::{slot}", True) for uuid in uuids for slot in range(SLOTS)
        )

    def devices(self) -> tuple[SlotDevice, ...]:
        return self._devices

    async def watch(self) -> AsyncGenerator[tuple[SlotDevice, ...], None]:
        yield self._devices
        await asyncio.Event().wait()

    def prefer(self, ask: PreferenceAsk) -> tuple[str, ...]:
        return ask.available[: ask.size]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerAnswer]:
        return [ContainerAnswer(environment={"NVIDIA_VISIBLE_DEVICES": ids[0]}) for ids in requests]

    async def pre_start(self, device_ids: Sequence[str]) -> None: ...


async def simplest(directory: Path, pods: int) -> list[float]:
    kubelet = FakeKubelet(directory / "plain")
    await kubelet.start()
    wire = KubeletWire(native.locate().kubelet_descriptors)
    server = PluginServer(RESOURCE, kubelet.plugins_dir, wire, Simplest(), fatal=print)
    await server.start()
    await kubelet.until(lambda: kubelet.allocatable(RESOURCE))
    for number in range(pods):
        await kubelet.admit(Pod(f"p{number}", SHAPE), RESOURCE)
    await server.close()
    await kubelet.stop()
    return kubelet.seconds["Allocate"]


class Served:
    """A daemon and its kubelet."""

    def __init__(self, directory: Path) -> None:
        self.kubelet = FakeKubelet(directory / "kubelet")
        self.kubelet.pods_api = True

    async def churn(self, pods: int) -> list[float]:
        """Pods come and go, 80 at a time; the seconds of starts that made a grant."""
        living: list[str] = []
        for number in range(pods):
            pod = Pod(f"p{number}", SHAPE)
            await self.kubelet.admit(pod, RESOURCE)
            await self.kubelet.start_container(pod.uid, "main")
            living.append(pod.uid)
            if len(living) > GRANTS:
                self.kubelet.end(living.pop(0))
        return self.kubelet.seconds["PreStartContainer"]

    async def restarts(self, count: int) -> list[float]:
        taken = []
        for _ in range(count):
            await self.kubelet.stop()
            await self.kubelet.start()
            began_s = time.monotonic()
            await self.kubelet.until(lambda: self.kubelet.allocatable(RESOURCE))
            taken.append(time.monotonic() - began_s)
        return taken


def settings(directory: Path, slots: int) -> str:
    return (
        f'[kubelet]\nenabled = true\ndirectory = "{directory}/kubelet"\ncdi_dir = "{directory}/cdi"\n'
        f"slots_per_gpu = {slots}\n"
    )


def install(node: Node, directory: Path) -> None:
    uuids = [str(gpu["uuid"]) for gpu in node.info()["gpus"]]
    libraries = {
        f"/usr/lib64/{name}": str(SIM / name) for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    } | {path: path for path in OTHER_LIBRARIES}
    write_installed(directory / "cdi", installed_spec(uuids, libraries))
    until(
        "what all containers share is written",
        lambda: list((directory / "cdi").glob("sluice.dev-driver_*")),
    )


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle_ratio(pid: int, seconds: float) -> float:
    before, began_s = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began_s)


def run(quick: bool) -> list[Entry]:
    pods, restarts, idle_s = (120, 20, 5.0) if quick else (500, 100, 20.0)
    with workplace() as directory:
        (directory / "kubelet").mkdir()
        with running(
            directory, gpus=f"{GPUS}xh100-80gb", settings=settings(directory, SLOTS)
        ) as node:
            install(node, directory)
            assert node.daemon is not None
            pid = node.daemon.pid
            at_rest = rss_mib(pid)
            served = Served(directory)

            async def use() -> tuple[list[float], list[float], list[float]]:
                await served.kubelet.start()
                await served.kubelet.until(lambda: served.kubelet.allocatable(RESOURCE))
                starts = await served.churn(pods)
                again = await served.restarts(restarts)
                await served.kubelet.stop()  # from now on nothing is released
                return starts, again, await simplest(directory, pods)

            starts, again, plain = asyncio.run(use())
            grants = len(node.grants())
            resident, idle = rss_mib(pid), idle_ratio(pid, idle_s)
    with workplace() as directory:
        (directory / "kubelet").mkdir()
        with running(directory, gpus=f"{GPUS}xh100-80gb", settings=settings(directory, MANY_SLOTS)):
            many = Served(directory)

            async def lists() -> list[float]:
                await many.kubelet.start()
                await many.kubelet.until(
                    lambda: len(many.kubelet.allocatable(RESOURCE)) == GPUS * MANY_SLOTS
                )
                await many.restarts(10)
                await many.kubelet.stop()
                return many.kubelet.seconds["ListAndWatch"]

            first = asyncio.run(lists())
    print(
        f"\nkubelet: {grants} grants, daemon {at_rest:.1f} MiB before, {resident:.1f} MiB after {pods} pods"
    )
    return [
        _p99(
            "allocate_p99_ms",
            "ms",
            [1e3 * s for s in served.kubelet.seconds["Allocate"]],
            "<= 5",
            1e3 * quantile(plain, 0.99),
        ),
        _p99(
            "prestart_p99_ms",
            "ms",
            [1e3 * s for s in starts],
            "25 of it waits for the runtime's cache",
        ),
        _p99("reregister_p99_s", "s", again, "<= 1"),
        entry("list_and_watch_first_ms", "ms", [1e3 * s for s in first]),
        entry("agent_rss_mib", "MiB", [resident], baseline=at_rest, target="<= 80"),
        entry("agent_idle_cpu_ratio", "", [idle], target="<= 0.01"),
    ]


def _p99(
    name: str, unit: str, samples: list[float], target: str, baseline: float | None = None
) -> Entry:
    value = quantile(samples, 0.99)
    ratio = None if baseline is None else value / baseline
    return entry(name, unit, samples, value=value, baseline=baseline, ratio=ratio, target=target)
