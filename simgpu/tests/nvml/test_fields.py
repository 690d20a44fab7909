"""The simulated NVML's figures by field number, its GPM, and the faults that its control file
counts, asked through pynvml."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from simgpu.tests.nvml.asking import GPUS, MS, nvml
from tests.kit.simulator.clients import Card, Cuda, card

UNSUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
FIELDS = """
def fields(index, *ids):
    return [v.value.ullVal if v.nvmlReturn == 0 else [v.nvmlReturn]
            for v in n.nvmlDeviceGetFieldValues(gpu(index), list(ids))]
"""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", GPUS) as it:
        yield it


def test_the_control_file_sets_counters_gpu_by_gpu(gpus: Card) -> None:
    gpus.control(
        "ecc_uncorrected=3@0,1@2",
        "row_remap_pending=1@1",
        "pcie_replay=7@3",
        "recovery_action=1@2",
        "nvlink_kib=12@0",
    )
    got = nvml(
        gpus,
        FIELDS
        + "answer([fields(i, 3, 4, 142, 144, 94, (138, 0xffffffff), 230) for i in range(4)])",
    )
    no = [UNSUPPORTED]
    assert got == [
        [0, 3, 0, 0, 0, 12, 0],
        [0, 0, 0, 1, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 1],
        [no, no, no, no, 7, no, no],
    ]


def test_old_and_new_calls_tell_the_same_of_a_fault(gpus: Card) -> None:
    gpus.control(
        "ecc_uncorrected=3@0", "row_remap_failed=1@0", "pcie_replay=9@0", "throttle=0x48@0"
    )
    got = nvml(
        gpus,
        FIELDS
        + """
h = gpu(0)
answer([n.nvmlDeviceGetTotalEccErrors(h, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC),
        n.nvmlDeviceGetRemappedRows(h), n.nvmlDeviceGetPcieReplayCounter(h),
        n.nvmlDeviceGetCurrentClocksEventReasons(h), n.nvmlDeviceGetCurrentClocksThrottleReasons(h),
        fields(0, 4, 145, 94)])
""",
    )
    idle = 1
    assert got == [3, [0, 0, 0, 1], 9, 0x48 | idle, 0x48 | idle, [3, 1, 9]]


@pytest.mark.parametrize("text", ["nonsense", "3", "3@", "@0", "3@x,1@0"])
def test_a_malformed_knob_counts_nothing(gpus: Card, text: str) -> None:
    gpus.control(f"ecc_uncorrected={text}")
    assert nvml(gpus, FIELDS + "answer(fields(0, 4))") == [0]


def busy(cuda: Cuda, seconds: float) -> None:
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    for _ in range(int(seconds * 50)):
        cuda.launch(kernel, stream, 20 * MS)
    cuda.cuStreamSynchronize(stream)


GPM = """
def sample(h):
    s = n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(h, s)
    return s
def between(a, b, *ids):
    ask = n.c_nvmlGpmMetricsGet_t()
    ask.version, ask.numMetrics, ask.sample1, ask.sample2 = 1, len(ids), a, b
    for i, id_ in enumerate(ids):
        ask.metrics[i].metricId = id_
    n.nvmlGpmMetricsGet(ask)
    return [ask.metrics[i].value if ask.metrics[i].nvmlReturn == 0 else None for i in range(len(ids))]
"""


def test_gpm_averages_the_timeline_between_two_samples(gpus: Card) -> None:
    gpus.client().submit(busy, 600.0)
    got = nvml(
        gpus,
        GPM
        + """
end = time.monotonic() + 60
while n.nvmlDeviceGetUtilizationRates(gpu(0)).gpu < 20 and time.monotonic() < end:
    time.sleep(0.05)
first, other = sample(gpu(0)), sample(gpu(1))
time.sleep(0.3)
answer([between(first, sample(gpu(0)), 1, 2, 10, 20, 999), between(other, sample(gpu(1)), 1),
        [n.nvmlGpmQueryDeviceSupport(gpu(i)).isSupportedDevice for i in range(4)],
        ask(lambda: sample(gpu(2)))])
""",
    )
    (graphics, sm, dram, pcie, unknown), (idle,), supported, ampere = got
    assert graphics > 90
    assert (sm, dram, pcie, unknown) == (graphics, graphics / 2, 0, None)
    assert idle == 0
    assert supported == [1, 1, 0, 0]
    assert ampere == {"error": UNSUPPORTED}
