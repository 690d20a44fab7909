"""The simulated GPU's time: what runs when, and that events, synchronising and counters tell one story.

Durations are on the device's own exact timeline, so the margins here are for the host only, and what is over because
the host was busy is measured again.
"""

from __future__ import annotations

import ctypes as c
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.measure import TRIES, ahead, shares
from tests.kit.simulator.clients import Card, Client, Cuda, CudaError, card

MS = 1_000_000
NOT_READY = 600


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


def punctual(gpu: Card) -> Client:
    """A client that gets a CPU when it wants one, as far as we may say so."""
    client = gpu.client()
    ahead(client.pid)
    return client


def timed(cuda: Cuda, launches: list[int]) -> list[float]:
    """Milliseconds between the events around each launch, all queued at once."""
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    events = [cuda.event()]
    cuda.cuEventRecord(events[0], stream)
    for ns in launches:
        cuda.launch(kernel, stream, ns)
        events.append(cuda.event())
        cuda.cuEventRecord(events[-1], stream)
    cuda.cuStreamSynchronize(stream)
    return [cuda.elapsed_ms(a, b) for a, b in itertools.pairwise(events)]


def beside(cuda: Cuda) -> float:
    """Milliseconds until 100 kernels of one context are over, with as many of another queued."""
    streams, ends = [], []
    for _ in range(2):
        cuda.context()
        kernel, stream = cuda.kernel(), cuda.stream()
        begin, end = cuda.event(), cuda.event()
        cuda.cuEventRecord(begin, stream)
        for _ in range(100):
            cuda.launch(kernel, stream, MS)
        cuda.cuEventRecord(end, stream)
        streams.append(stream)
        ends.append((begin, end))
    cuda.cuStreamSynchronize(streams[1])
    return cuda.elapsed_ms(*ends[1])


@pytest.mark.parametrize(("switch_us", "least", "most"), [(0, 180, 230), (1000, 260, 350)])
def test_changing_contexts_takes_what_the_knob_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch_us: int, least: int, most: int
) -> None:
    """Slices of 2 ms: 100 changes in 200 ms of work, a quarter longer in the middle of a kernel."""
    monkeypatch.setenv("SLUICE_SIM_SWITCH_US", str(switch_us))
    with card(tmp_path / "sim") as gpu:
        got = [punctual(gpu).call(beside)]
        while not least <= got[-1] <= most and len(got) < TRIES:
            got.append(punctual(gpu).call(beside))
    assert least <= got[-1] <= most, got


COPIES = 10
COPY_BYTES = 100_000_000
COPY_MS = 4.0
"""At the 25 GB/s of the link."""


def copied(cuda: Cuda, stream: c.c_void_p) -> tuple[c.c_void_p, c.c_void_p]:
    """Queue copies to the host; events around them. The pages are managed, so that no byte is really moved."""
    at = c.c_uint64()
    cuda.cuMemAllocManaged(c.byref(at), c.c_size_t(COPY_BYTES), 1)
    begin, end = cuda.event(), cuda.event()
    cuda.cuEventRecord(begin, stream)
    for _ in range(COPIES):
        cuda.cuMemPrefetchAsync(at, c.c_size_t(COPY_BYTES), -1, stream)
    cuda.cuEventRecord(end, stream)
    return begin, end


def kernels_beside_copies(cuda: Cuda) -> tuple[float, float]:
    """Milliseconds of 40 ms of kernels of one context, and of 40 ms of another's copies queued at once."""
    cuda.context()
    kernel, works = cuda.kernel(), cuda.stream()
    begin, end = cuda.event(), cuda.event()
    cuda.cuEventRecord(begin, works)
    for _ in range(40):
        cuda.launch(kernel, works, MS)
    cuda.cuEventRecord(end, works)
    cuda.context()
    stream = cuda.stream()
    around = copied(cuda, stream)
    cuda.cuStreamSynchronize(stream)
    copies_ms = cuda.elapsed_ms(*around)
    cuda.cuStreamSynchronize(works)
    return cuda.elapsed_ms(begin, end), copies_ms


def kernels_and_copies(cuda: Cuda) -> float:
    """Milliseconds of 40 ms of kernels followed by as much of copies, in one context."""
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    begin = cuda.event()
    cuda.cuEventRecord(begin, stream)
    for _ in range(40):
        cuda.launch(kernel, stream, MS)
    _, end = copied(cuda, stream)
    cuda.cuStreamSynchronize(stream)
    return cuda.elapsed_ms(begin, end)


def test_copies_run_beside_the_kernels_of_another_context(gpu: Card) -> None:
    """They took turns in slices, and each took twice as long."""
    got = [punctual(gpu).call(kernels_beside_copies)]
    while max(got[-1]) >= 50 and len(got) < TRIES:
        got.append(punctual(gpu).call(kernels_beside_copies))
    kernels_ms, copies_ms = got[-1]
    assert 40 <= kernels_ms < 50, got
    assert COPIES * COPY_MS - 0.01 <= copies_ms < 50, got


def test_a_context_copies_when_its_kernels_are_over(gpu: Card) -> None:
    assert punctual(gpu).call(kernels_and_copies) >= 40 + COPIES * COPY_MS - 0.01


def test_a_lone_context_has_the_gpu_to_itself(gpu: Card) -> None:
    client = punctual(gpu)
    # The first waits until the host has submitted it, and holds the others back until they are.
    for ms in (50, 500, 5000):
        got = client.call(timed, [ms * MS, 20 * MS, MS, 100])
        assert got[0] >= ms
        if got[0] < 1.2 * ms and got[1:] == pytest.approx([20.0, 1.0, 0.0001], abs=1e-4):
            return
    pytest.fail(f"milliseconds of the last try: {got}")


def test_synchronise_returns_when_the_work_is_over_and_not_before(gpu: Card) -> None:
    client = punctual(gpu)
    took = []
    for _ in range(TRIES):
        before, after, seconds = client.call(sync_story)
        assert (before, after) == (NOT_READY, 0)
        took.append(seconds)
    assert min(took) >= 0.2
    assert min(took) < 0.5


def sync_story(cuda: Cuda) -> tuple[int, int, float]:
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    began = time.monotonic()
    cuda.launch(kernel, stream, 200 * MS)
    submitted = cuda.try_("cuStreamQuery", stream)
    cuda.cuStreamSynchronize(stream)
    took = time.monotonic() - began
    return submitted, cuda.try_("cuStreamQuery", stream), took


def keep_busy(cuda: Cuda, start: float, count: int, ns: int) -> tuple[float, float]:
    """(wall time, GPU time of our own work) for `count` kernels queued at `start`."""
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    while time.monotonic() < start:
        time.sleep(0.001)
    began = time.monotonic()
    for _ in range(count):
        cuda.launch(kernel, stream, ns)
    cuda.cuStreamSynchronize(stream)
    return time.monotonic() - began, count * ns / 1e9


def test_two_contexts_share_the_time_evenly_in_slices(gpu: Card) -> None:
    first, second = punctual(gpu), punctual(gpu)

    def measure() -> list[float]:
        start = time.monotonic() + 0.5
        jobs = [
            first.submit(keep_busy, start, 300, MS),
            second.submit(keep_busy, start, 30, 10 * MS),
        ]
        return [own / wall for wall, own in (job.result(60) for job in jobs)]

    # Long or short kernels alike: half of the GPU each.
    shares(measure, [0.5, 0.5], 0.06, capped=False)


def test_a_context_that_is_alone_again_has_everything(gpu: Card) -> None:
    first, second = punctual(gpu), punctual(gpu)

    def measure() -> list[float]:
        start = time.monotonic() + 0.5
        jobs = [first.submit(keep_busy, start, 100, MS), second.submit(keep_busy, start, 300, MS)]
        return [own / wall for wall, own in (job.result(60) for job in jobs)]

    # 0.1 of 0.2 s together, and then 0.2 s alone: 0.3 of 0.4 s.
    shares(measure, [0.5, 0.75], 0.09, capped=False)


def run_for_ever(cuda: Cuda) -> int:
    cuda.context()
    stream = cuda.stream()
    cuda.launch(cuda.kernel("sim_busy_forever"), stream)
    return cuda.try_("cuStreamQuery", stream)


def test_the_work_of_a_killed_process_ends_with_it(gpu: Card) -> None:
    endless, other = gpu.client(), punctual(gpu)
    assert endless.call(run_for_ever) == NOT_READY

    def measure() -> list[float]:
        wall, own = other.call(keep_busy, 0.0, 100, MS)
        return [own / wall]

    shares(measure, [0.5], 0.08)
    endless.kill()
    shares(measure, [1.0], 0.1)


def hold(cuda: Cuda, size: int) -> tuple[int, int]:
    cuda.context()
    cuda.alloc(size)
    return cuda.memory()


def look(cuda: Cuda) -> tuple[int, int]:
    return cuda.memory()


def test_the_memory_of_a_killed_process_is_free_again(gpu: Card) -> None:
    keeper, victim = gpu.client(), gpu.client()
    before, total = keeper.call(hold, 2**20)
    during, _ = victim.call(hold, 10 * 2**30)
    assert before - during > 10 * 2**30, "ten GiB and a context"
    victim.kill()
    end = time.monotonic() + 60
    while keeper.call(look)[0] != before and time.monotonic() < end:
        time.sleep(0.01)
    assert keeper.call(look) == (before, total)


def three_streams(cuda: Cuda) -> float:
    cuda.context()
    kernel = cuda.kernel()
    streams = [cuda.stream() for _ in range(3)]
    began = time.monotonic()
    for stream in streams:
        cuda.launch(kernel, stream, 30 * MS)
    cuda.cuCtxSynchronize()
    return time.monotonic() - began


def test_streams_of_one_context_run_one_after_another(gpu: Card) -> None:
    client = punctual(gpu)
    took = [client.call(three_streams) for _ in range(TRIES)]
    assert min(took) >= 0.09
    assert min(took) < 0.12


def per_thread_and_legacy(cuda: Cuda) -> tuple[int, int, int]:
    """A program built for per-thread default streams has streams that are not the legacy one."""
    cuda.context()
    kernel, stream = cuda.kernel(), c.c_void_p()
    cuda.launch(kernel, None, 30 * MS, symbol="cuLaunchKernel_ptsz")
    legacy = cuda.try_("cuStreamQuery", c.c_void_p(1))
    own = cuda.try_("cuStreamQuery_ptsz", stream)
    cuda.cuStreamSynchronize_ptsz(None)
    return legacy, own, cuda.try_("cuStreamQuery", c.c_void_p(2))


def test_the_default_stream_has_two_flavours(gpu: Card) -> None:
    legacy, own, later = gpu.client().call(per_thread_and_legacy)
    assert (legacy, own, later) == (0, NOT_READY, 0)


def long_queue(cuda: Cuda) -> float:
    """More launches than the hardware queue holds: the launching thread waits, nothing is lost."""
    cuda.context()
    kernel, stream = cuda.kernel(), cuda.stream()
    before, after = cuda.event(), cuda.event()
    cuda.cuEventRecord(before, stream)
    for _ in range(4000):
        cuda.launch(kernel, stream, 100_000)
    cuda.cuEventRecord(after, stream)
    cuda.cuStreamSynchronize(stream)
    return cuda.elapsed_ms(before, after)


def test_a_full_queue_holds_the_launching_thread(gpu: Card) -> None:
    client = punctual(gpu)
    took_ms = [client.call(long_queue) for _ in range(TRIES)]
    assert min(took_ms) >= 400
    assert min(took_ms) < 480


def other_kernel(cuda: Cuda, grid: int) -> float:
    cuda.context()
    kernel, stream = cuda.kernel("some_gemm"), cuda.stream()
    before, after = cuda.event(), cuda.event()
    cuda.launch(kernel, stream, grid=1)
    cuda.cuEventRecord(before, stream)
    cuda.launch(kernel, stream, grid=grid)
    cuda.cuEventRecord(after, stream)
    cuda.cuStreamSynchronize(stream)
    return cuda.elapsed_ms(before, after)


def test_other_kernels_take_longer_with_a_larger_grid(gpu: Card) -> None:
    small, large = gpu.client().call(other_kernel, 1), gpu.client().call(other_kernel, 1_000_000)
    assert 0 < small < large


def event_errors(cuda: Cuda) -> list[int]:
    cuda.context()
    kernel, stream, never, early = cuda.kernel(), cuda.stream(), cuda.event(), cuda.event()
    ms, codes = c.c_float(), []
    codes.append(cuda.try_("cuEventElapsedTime", c.byref(ms), early, never))
    cuda.cuEventRecord(early, stream)
    cuda.launch(kernel, stream, 20 * MS)
    cuda.cuEventRecord(never, stream)
    codes.append(cuda.try_("cuEventElapsedTime", c.byref(ms), early, never))
    codes.append(cuda.try_("cuEventQuery", never))
    cuda.cuEventSynchronize(never)
    codes.append(cuda.try_("cuEventElapsedTime", c.byref(ms), early, never))
    return codes


def test_events_answer_as_the_drivers_do(gpu: Card) -> None:
    assert gpu.client().call(event_errors) == [400, NOT_READY, NOT_READY, 0]


def test_an_error_names_its_call(gpu: Card) -> None:
    with pytest.raises(CudaError) as caught:
        gpu.client().call(look)
    assert (caught.value.name, caught.value.code) == ("cuMemGetInfo_v2", 3)
