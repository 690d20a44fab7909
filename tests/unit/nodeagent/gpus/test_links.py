"""Which cards are joined: by what each says of the other ends of its links."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from nodeagent.adapters.nvml import sweep
from nodeagent.adapters.nvml.binding import pynvml
from nodeagent.core.gpus.links import linked
from nodeagent.ports.gpus import SWITCH, GpuReading
from nodeagent.units import Bytes, GpuUuid


def card(name: str, bus: str | None, **more: Any) -> GpuReading:
    return GpuReading(GpuUuid(name), 0, "H100", Bytes(1), pci_bus_id=bus, **more)


@pytest.mark.parametrize(
    ("cards", "found"),
    [
        (
            [
                card("a", "00000000:1B:00.0", nvlink_peers={"0000:2C:00.0": 4}),
                card("b", "00000000:2C:00.0", nvlink_peers={"0000:1B:00.0": 4}),
                card("c", "00000000:3D:00.0", nvlink_peers={}),
            ],
            {"a": {"b": 4}, "b": {"a": 4}},
        ),
        (
            [
                card("a", "0:1:0.0", nvlink_peers={SWITCH: 18}),
                card("b", "0:2:0.0", nvlink_peers={SWITCH: 12}),
                card("c", "0:3:0.0"),
            ],
            {"a": {"b": 12}, "b": {"a": 12}},
        ),
        ([card("a", None, nvlink_peers={"nonsense": 2, "0:9:0.0": 1})], {}),
        (
            [
                card("a", "0:1:0.0", nvlink_peers={SWITCH: 18}),
                card("i", "0:1:0.0", nvlink_peers={SWITCH: 18}, mig_card=GpuUuid("a")),
            ],
            {},
        ),
    ],
    ids=["card to card", "behind switches", "to what is no card of ours", "an instance has none"],
)
def test_links(cards: list[GpuReading], found: dict[str, dict[str, int]]) -> None:
    assert linked(cards) == found


def test_each_active_link_is_asked_for_its_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def state(_card: str, link: int) -> int:
        if link >= 4:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link != 1)

    def kind(_card: str, link: int) -> int:
        if link == 3:  # an older driver does not know
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 2 if link == 0 else 0

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkState", state)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkRemoteDeviceType", kind)
    far = SimpleNamespace(busId=b"00000000:2C:00.0")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkRemotePciInfo", lambda _card, _link: far)
    assert sweep._peers("card") == {SWITCH: 1, "00000000:2C:00.0": 2}
