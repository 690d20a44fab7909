"""Users of the GPUs that grants do not contain, as `sluice doctor` shows them."""

from __future__ import annotations

from nodeagent.core.gpus.outside import MPS_SERVER, findings
from nodeagent.core.grants.placement import Load
from nodeagent.ports.gpus import GpuReading, ProcessReading
from nodeagent.units import GIB, MIB, Bytes, GpuUuid

NAMES = {1: "Xorg", 2: "blender", 3: "nvidia-cuda-mps", 4: "python3"}


def gpu(*processes: int, graphics: tuple[int, ...] = ()) -> GpuReading:
    return GpuReading(
        GpuUuid("GPU-0"),
        0,
        "a card",
        Bytes(80 * GIB),
        processes=tuple(ProcessReading(pid, Bytes(pid * GIB)) for pid in processes),
        graphics=tuple(ProcessReading(pid, Bytes(pid * 100 * MIB)) for pid in graphics),
    )


def found(one: GpuReading, *groups: str) -> dict[str, str]:
    held = {one.uuid: Load(grants=1, groups=frozenset(groups))}
    all_of_them = findings([one], lambda pid: NAMES.get(pid, ""), held)
    assert {each.level for each in all_of_them} <= {"ok", "warning"}
    return {each.topic: each.what for each in all_of_them}


def test_a_node_of_grants_alone_has_no_finding() -> None:
    assert found(gpu(4)) == {}


def test_graphics_programs_are_named_with_their_memory_the_largest_first() -> None:
    text = found(gpu(4, graphics=(1, 2)))["graphics on GPU 0"]
    assert "2 graphics programs with 300Mi, outside of all grants" in text
    assert text.endswith("blender (pid 2, 200Mi), Xorg (pid 1, 100Mi)")


def test_of_many_the_largest_are_named() -> None:
    text = found(gpu(graphics=tuple(range(10, 18))))["graphics on GPU 0"]
    assert "8 graphics programs" in text
    assert text.endswith("and 3 more")


def test_an_mps_server_is_known_by_its_shortened_name() -> None:
    assert MPS_SERVER.startswith(NAMES[3])
    assert found(gpu(3, 4)) == {"mps": "an MPS server runs: pid 3 on GPU 0"}


def test_the_server_of_a_trusted_group_is_named_and_one_that_lacks_too() -> None:
    assert found(gpu(3, 4), "uid 1000/a") == {
        "trusted group uid 1000/a": "MPS server of trusted group uid 1000/a: pid 3 on GPU 0"
    }
    (text,) = found(gpu(4), "uid 1000/a").values()
    assert text == "uid 1000/a is on GPU 0, where no MPS server runs (yet)"
    assert list(found(gpu(3, 4), "")) == ["mps"], "grants beside a server, in no group"
