"""MIG instances that are newer than the installed specification: what a container is given of them, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.adapters.containers.capabilities import read_capabilities
from nodeagent.core.kubelet.cdi_base import BaseSpec, edits_of, parse
from nodeagent.core.kubelet.cdi_mig import Capabilities, InstanceOf, completed
from nodeagent.units import GpuUuid
from tests.kit.fakes.nvidia_cdi import installed_spec

CARD = GpuUuid("GPU-00000000-1111-2222-3333-444444444444")
OTHER = GpuUuid("GPU-11111111-1111-2222-3333-444444444444")
MIG = GpuUuid("MIG-00000000-1111-2222-3333-444444444444")
INSTANCES = {MIG: InstanceOf(OTHER, 7, 0)}
MINORS = "gpu1/gi7/access 66\ngpu1/gi7/ci0/access 67\nconfig 1\nmonitor 2\n"


def installed(*gpus: str) -> BaseSpec:
    found = parse(installed_spec(gpus, {"/usr/lib64/libcuda.so.1": "/driver/libcuda.so.1"}), "it")
    assert found is not None
    return found


def nodes(spec: BaseSpec, capabilities: Capabilities | None) -> list[object]:
    specs = completed([spec], [MIG], {}, INSTANCES, capabilities)
    edits, _ = edits_of(specs, [MIG], {})
    return list(edits["deviceNodes"])


def test_it_has_its_cards_node_and_its_own_two_capabilities() -> None:
    found = nodes(installed(CARD, OTHER), Capabilities(511, {"gpu1/gi7/access": 66, "gpu1/gi7/ci0/access": 67}))  # fmt: skip
    assert [one["path"] for one in found if isinstance(one, dict)] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap66",
        "/dev/nvidia-caps/nvidia-cap67",
    ]
    assert found[-1] == {"path": "/dev/nvidia-caps/nvidia-cap67", "type": "c", "major": 511, "minor": 67}  # fmt: skip


def test_where_the_specification_names_it_that_is_taken() -> None:
    spec = installed(CARD, MIG)
    assert completed([spec], [MIG], {}, INSTANCES, None) == [spec]


def test_a_capability_that_the_driver_has_not_is_an_error_and_not_an_open_door() -> None:
    with pytest.raises(ValueError, match="the driver has no capability gpu1/gi7/ci0/access"):
        nodes(installed(CARD, OTHER), Capabilities(511, {"gpu1/gi7/access": 66}))


def test_an_instance_of_a_card_that_is_not_installed_is_told_as_ever() -> None:
    with pytest.raises(ValueError, match=f"{MIG} is not in it"):
        nodes(installed(CARD), None)


def test_the_kernels_files_are_read(tmp_path: Path) -> None:
    assert read_capabilities(tmp_path) is None
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "driver/nvidia-caps/mig-minors").write_text(MINORS)
    (tmp_path / "devices").write_text("Character devices:\n195 nvidia\n511 nvidia-caps\n")
    assert read_capabilities(tmp_path) == Capabilities(511, {"gpu1/gi7/access": 66, "gpu1/gi7/ci0/access": 67})  # fmt: skip
    (tmp_path / "devices").write_text("195 nvidia\n")
    with pytest.raises(ValueError, match="names no nvidia-caps"):
        read_capabilities(tmp_path)
