"""The real reader process over the simulated NVML: what it says, what it leaves out, and what a
driver in trouble costs."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from nodeagent.adapters.host.clock import SystemClock
from nodeagent.adapters.nvml.reader import ChildNvml
from nodeagent.ports.gpus import GpuReading, NodeReading, ProfileReading
from nodeagent.units import Nanoseconds
from tests.kit.places import REPO, SIM
from tests.kit.simulator.clients import GIB, Card, Cuda, card

GPUS = "2xh100-80gb,a100-40gb,rtx4090-24gb"


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        monkeypatch.setenv("SLUICE_SIM_DIR", str(it.directory))
        monkeypatch.setenv("SLUICE_SIM_GPUS", GPUS)
        monkeypatch.setenv("PYTHONPATH", str(REPO))
        yield it


class Hurried(SystemClock):
    """A clock on which the pauses between starts are over at once."""

    def __init__(self) -> None:
        self._calls = 0

    def monotonic_ns(self) -> Nanoseconds:
        self._calls += 1
        return Nanoseconds(super().monotonic_ns() + self._calls * 120_000_000_000)


def with_reader(
    act: Callable[[ChildNvml], Awaitable[None]], deadline_s: float = 30.0, hurried: bool = False
) -> None:
    async def run() -> None:
        clock = Hurried() if hurried else SystemClock()
        reader = ChildNvml(str(SIM / "libnvidia-ml.so.1"), deadline_s, clock)
        try:
            await act(reader)
        finally:
            await reader.close()

    asyncio.run(run())


def hold(cuda: Cuda) -> int:
    cuda.context()
    return cuda.alloc(2 * GIB)


NOT_ON = {
    0: {"error", "mig"},
    2: {"error", "mig", "profile"},
    3: {
        *("error", "mig", "profile", "recovery_action", "memory_temperature_celsius"),
        *("ecc_corrected_total", "ecc_uncorrected_total", "row_remap_correctable_total"),
        *("row_remap_uncorrectable_total", "row_remap_pending", "row_remap_failed"),
        *("nvlink_tx_bytes_total", "nvlink_rx_bytes_total", "nvlinks_active", "nvlink_peers"),
    },
}
"""Fields that the model does not report, by index; everything else must be there."""
OF_INSTANCES = {"mig_card", "mig_slice_start", "mig_slices"}


def test_every_figure_is_there_where_the_model_has_it_and_none_elsewhere(gpus: Card) -> None:
    client = gpus.client()
    client.call(hold)
    gpus.control(
        "ecc_uncorrected=3@0", "row_remap_pending=1@2", "throttle=0xc8@0", "pcie_replay=4@0"
    )

    async def act(reader: ChildNvml) -> None:
        await reader.read()  # performance figures need two
        reading = await reader.read()
        assert reading.error is None
        for index, absent in NOT_ON.items():
            gpu = reading.gpus[index]
            missing = {f.name for f in fields(GpuReading) if getattr(gpu, f.name) is None}
            assert missing == absent | OF_INSTANCES, f"GPU {index}"
        assert [gpu.sm_count for gpu in reading.gpus] == [132, 132, 108, 128]
        first = reading.gpus[0]
        assert (first.ecc_uncorrected_total, first.pcie_replay_total) == (3, 4)
        assert first.throttle_reasons == ("hw_power_brake", "hw_slowdown", "hw_thermal_slowdown")
        assert reading.gpus[1].throttle_reasons == ()
        assert reading.gpus[2].row_remap_pending is True
        assert reading.gpus[0].row_remap_pending is False
        assert isinstance(first.profile, ProfileReading)
        (process,) = first.processes
        assert process.pid == client.pid
        assert (process.memory_bytes or 0) > 2 * GIB

    with_reader(act)


def test_a_new_error_counter_is_seen_with_its_xid_at_once(gpus: Card) -> None:
    async def act(reader: ChildNvml) -> None:
        first = await reader.read()
        assert first.gpus[1].ecc_uncorrected_total == 0
        gpus.control("ecc_uncorrected=1@1", "xid=48@1")
        reading = await until(reader, lambda now: bool(now.xid_events))
        assert reading.xid_events == ((first.gpus[1].uuid, 48),)
        assert reading.gpus[1].ecc_uncorrected_total == 1

    with_reader(act)


async def until(reader: ChildNvml, good: Callable[[NodeReading], bool]) -> NodeReading:
    async with asyncio.timeout(60):
        while not good(reading := await reader.read()):
            await asyncio.sleep(0.02)
    return reading


def test_a_killed_reader_is_replaced(gpus: Card) -> None:
    async def act(reader: ChildNvml) -> None:
        await reader.read()
        assert reader.pid is not None
        first = reader.pid
        os.kill(first, signal.SIGKILL)
        well = await until(reader, lambda now: now.error is None and reader.pid != first)
        assert len(well.gpus) == 4
        assert reader.restarts_total == 1

    with_reader(act, hurried=True)


def test_a_hung_driver_costs_one_deadline_and_is_seen_to_recover(gpus: Card) -> None:
    async def act(reader: ChildNvml) -> None:
        await reader.read()
        gpus.control("nvml_hang=1")
        hung = await until(reader, lambda now: now.error is not None)
        assert "timed out" in (hung.error or "")
        gpus.control()
        assert len((await until(reader, lambda now: now.error is None)).gpus) == 4

    with_reader(act, deadline_s=0.5, hurried=True)


def test_a_driver_replaced_under_us_is_read_by_a_new_process(gpus: Card) -> None:
    async def act(reader: ChildNvml) -> None:
        first = await reader.read()
        before = reader.pid
        gpus.control("version_skew=1", "gpu_lost=0,1,2,3")
        await reader.refresh()
        torn = await until(reader, lambda now: now.error is not None)
        assert "mismatch" in (torn.error or "")
        gpus.control("driver_version=999.10")
        after = await until(reader, lambda now: now.error is None)
        assert (first.driver_version, after.driver_version) == ("580.95.05", "999.10")
        assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in first.gpus]
        assert reader.pid != before

    with_reader(act, hurried=True)


@pytest.mark.parametrize("beside", [False, True], ids=["in its place", "beside it"])
def test_a_library_that_was_replaced_is_looked_at_anew(
    gpus: Card, tmp_path: Path, beside: bool
) -> None:
    """The old one would go on to work in this process, while every new program fails."""
    link, real = tmp_path / "libnvidia-ml.so.1", tmp_path / "libnvidia-ml.so.580"
    shutil.copy(SIM / link.name, real)
    link.symlink_to(real.name)

    async def act() -> None:
        reader = ChildNvml(str(link), 30.0, Hurried())
        try:
            first = await reader.read()
            assert (await reader.read()).error is None
            pid = reader.pid
            gpus.control("version_skew=1")
            assert (await reader.read()).error is None, "the old one still works"
            new = tmp_path / "libnvidia-ml.so.590"
            shutil.copy(SIM / link.name, new)
            if beside:
                (tmp_path / "next").symlink_to(new.name)
                (tmp_path / "next").replace(link)
            else:
                new.replace(real)
            await until(reader, lambda now: "mismatch" in (now.error or ""))
            gpus.control()
            after = await until(reader, lambda now: now.error is None)
            assert len(after.gpus) == len(first.gpus)
            assert reader.pid != pid
        finally:
            await reader.close()

    asyncio.run(act())


def test_without_a_driver_the_reader_is_started_ever_more_rarely(tmp_path: Path) -> None:
    async def act() -> None:
        clock = SystemClock()
        reader = ChildNvml(str(tmp_path / "libnvidia-ml.so.1"), 30.0, clock)
        first = await reader.read()
        assert "cannot be loaded" in (first.error or "")
        again = await reader.read()
        assert again.error == first.error
        assert reader.restarts_total == 1
        await reader.close()

    asyncio.run(act())
