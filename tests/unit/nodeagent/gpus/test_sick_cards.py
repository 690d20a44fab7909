"""One sick card costs the node neither the other cards nor their XIDs, and what is missing is reported with the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.adapters.nvml import wire
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.adapters.nvml.sweep import SLOW_EVERY_S, Sweeper
from nodeagent.core.grants.placement import Unplaced, place
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.gpus import CardProblem, NodeReading
from nodeagent.shell.gpus.readings import Gpus
from nodeagent.units import WHOLE_PPM, Bytes, GpuUuid, Ppm, SharePolicy

GIB = 1 << 30


@dataclass
class Driver:
    """NVML of three cards, of which single calls fail."""

    failing: dict[tuple[str, int], int] = field(default_factory=dict)
    """(call, card) to NVML's code."""
    events: list[tuple[int, int]] = field(default_factory=list)
    """(card, XID) not yet read."""
    registered: set[int] = field(default_factory=set)
    wait_code: int = pynvml.NVML_ERROR_TIMEOUT
    now_s: float = 100.0

    def answer(self, call: str, card: int, value: Any) -> Any:
        if (call, card) in self.failing:
            raise pynvml.NVMLError(self.failing[call, card])
        return value

    def handle(self, index: int) -> int:
        return int(self.answer("handle", index, index))

    def memory(self, card: int, version: int | None = None) -> Any:
        return self.answer("memory", card, SimpleNamespace(total=80 * GIB, used=GIB, reserved=0))

    def register(self, card: int, _kinds: int, _events: object) -> None:
        self.answer("register", card, None)
        self.registered.add(card)

    def wait(self, _events: object, _ms: int) -> Any:
        for place_, (card, xid) in enumerate(self.events):
            if card in self.registered:
                del self.events[place_]
                return SimpleNamespace(device=card, eventData=xid)
        raise pynvml.NVMLError(self.wait_code)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    it = Driver()

    def absent(name: str) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", absent)
    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.95.05",
        "nvmlDeviceGetCount": lambda: 3,
        "nvmlDeviceGetHandleByIndex": it.handle,
        "nvmlDeviceGetUUID": lambda card: it.answer("uuid", card, f"GPU-{card}"),
        "nvmlDeviceGetName": lambda card: it.answer("name", card, "NVIDIA A100"),
        "nvmlDeviceGetMemoryInfo": it.memory,
        "nvmlEventSetCreate": lambda: "set",
        "nvmlDeviceRegisterEvents": it.register,
        "nvmlEventSetWait_v2": it.wait,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    return it


def sweeper(driver: Driver) -> Sweeper:
    return Sweeper(None, lambda: driver.now_s)


def uuids(reading: NodeReading) -> list[str]:
    return [card.uuid for card in reading.gpus if card.error is None]


@pytest.mark.parametrize(
    ("call", "code"),
    [("handle", pynvml.NVML_ERROR_GPU_IS_LOST), ("uuid", 999), ("name", 999)],
)
def test_a_card_that_does_not_answer_at_the_start_leaves_the_others(
    driver: Driver, call: str, code: int
) -> None:
    driver.failing[call, 1] = code
    sweep = sweeper(driver)
    first = sweep.sweep()
    assert uuids(first) == ["GPU-0", "GPU-2"]
    assert [(one.index, one.uuid) for one in first.unread] == [(1, None)]
    assert first.unread[0].reason == str(pynvml.NVMLError(code))
    driver.failing.clear()
    assert uuids(sweep.sweep()) == ["GPU-0", "GPU-2"], "looked at again every few seconds only"
    driver.now_s += SLOW_EVERY_S
    later = sweep.sweep()
    assert uuids(later) == ["GPU-0", "GPU-1", "GPU-2"]
    assert [card.index for card in later.gpus] == [0, 1, 2]
    assert later.unread == ()


def test_a_card_without_events_leaves_the_xids_of_the_others(driver: Driver) -> None:
    driver.failing["register", 2] = pynvml.NVML_ERROR_NOT_SUPPORTED
    sweep = sweeper(driver)
    driver.events += [(0, 79), (2, 31)]
    reading = sweep.sweep()
    assert reading.xid_events == (("GPU-0", 79),)
    assert [(one.index, one.reason) for one in reading.without_xids] == [(2, "Not Supported")]


def test_a_wait_that_fails_is_not_taken_for_quiet(driver: Driver) -> None:
    sweep = sweeper(driver)
    assert sweep.sweep().without_xids == ()
    driver.wait_code = pynvml.NVML_ERROR_UNKNOWN
    assert [one.reason for one in sweep.sweep().without_xids] == ["Unknown Error"] * 3
    driver.wait_code = pynvml.NVML_ERROR_TIMEOUT
    assert sweep.sweep().without_xids == ()


def test_problems_pass_from_the_reader_to_the_daemon(driver: Driver) -> None:
    driver.failing |= {("handle", 0): 15, ("register", 2): pynvml.NVML_ERROR_NOT_SUPPORTED}
    reading = sweeper(driver).sweep()
    assert wire.decode(wire.encode(reading)) == reading
    assert reading.unread
    assert reading.without_xids


def test_what_is_missing_is_reported_once_and_when_it_ends() -> None:
    gpus = Gpus(10, 0)
    told: list[tuple[str, str]] = []
    gpus.on_news.append(lambda _kind, level, text: told.append((level, text)))
    sick = NodeReading(
        unread=(CardProblem(1, "", "GPU is lost"),),
        without_xids=(CardProblem(2, "NVIDIA A100", "Not Supported", GpuUuid("GPU-2")),),
    )
    for _ in range(3):
        gpus.take(sick, 1)
    assert told == [
        ("warning", "GPU 1 cannot be read and is not served: GPU is lost"),
        ("warning", "GPU 2 (NVIDIA A100) reports no XIDs: Not Supported"),
    ]
    assert [(one.topic, one.level) for one in gpus.findings()] == [
        ("GPU 1", "missing"),
        ("XIDs of GPU 2 (NVIDIA A100)", "warning"),
    ]
    gpus.take(NodeReading(), 2)
    assert [level for level, _ in told[2:]] == ["info", "info"]
    assert gpus.findings() == []


def test_a_card_without_memory_figures_is_named_where_it_is_asked_for(driver: Driver) -> None:
    driver.failing["memory", 1] = pynvml.NVML_ERROR_NOT_SUPPORTED
    gpus = Gpus(10, 0)
    gpus.take(sweeper(driver).sweep(), 1)
    seen = gpus.seen()
    assert [one.uuid for one in seen.gpus] == ["GPU-0", "GPU-2"]
    ask = GrantAsk(
        gpus=1,
        share_ppm=Ppm(WHOLE_PPM),
        policy=SharePolicy.ELASTIC,
        gpu_uuids=(GpuUuid("GPU-1"),),
        memory=MemoryAsk(amount_bytes=Bytes(GIB)),
    )
    for there in (seen.gpus, ()):
        refused = place(ask, there, {}, unread=seen.unread)
        assert isinstance(refused, Unplaced)
        assert refused.reason.startswith("GPU 1 (NVIDIA A100) cannot be read: Not Supported")
    (finding,) = gpus.findings()
    assert "GPU 1 (NVIDIA A100)" in finding.topic
    assert "Not Supported" in finding.what
