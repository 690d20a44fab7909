"""Owners of a card's parts in MIG mode: its instances, and the processes on them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.core.gpus.mig import unit_of, units
from nodeagent.ports.gpus import MigReading, ProcessReading
from nodeagent.units import GIB, Bytes, GpuUuid
from tests.kit.fakes.nvml import gpu_reading

SMALL = MigReading(GpuUuid("MIG-small"), "1g.10gb", 7, 0, Bytes(10 * GIB), Bytes(GIB))
LARGE = MigReading(GpuUuid("MIG-large"), "3g.40gb", 2, 0, Bytes(40 * GIB), Bytes(GIB))
SECOND = MigReading(GpuUuid("MIG-second"), "1c.3g.40gb", 2, 1, Bytes(40 * GIB), Bytes(GIB))
PROCESSES = (
    ProcessReading(10, Bytes(GIB), gpu_instance=7, compute_instance=0),
    ProcessReading(11, Bytes(GIB), gpu_instance=2, compute_instance=1),
    ProcessReading(12, Bytes(GIB)),
)
CARD = replace(gpu_reading(0), mig=(SMALL, LARGE, SECOND), processes=PROCESSES, power_watts=300.0)


@pytest.mark.parametrize(
    ("process", "unit"),
    list(zip(PROCESSES, ("MIG-small", "MIG-second", CARD.uuid), strict=True)),
    ids=["on one", "on the second of a GPU instance", "on none the driver names"],
)
def test_a_process_is_on_the_instance_that_the_driver_names(
    process: ProcessReading, unit: str
) -> None:
    assert unit_of(CARD, process) == unit


def test_without_mig_a_process_is_on_the_card() -> None:
    assert unit_of(replace(CARD, mig=None), PROCESSES[0]) == CARD.uuid


def test_instances_have_their_own_processes_and_no_power() -> None:
    whole = gpu_reading(1)
    found = {one.uuid: one for one in units([CARD, whole])}
    assert list(found) == ["MIG-small", "MIG-large", "MIG-second", whole.uuid]
    assert [one.pid for one in found[SMALL.uuid].processes] == [10]
    assert found[LARGE.uuid].processes == ()
    assert [one.pid for one in found[SECOND.uuid].processes] == [11]
    assert found[SMALL.uuid].power_watts is None
    assert found[whole.uuid] == whole
