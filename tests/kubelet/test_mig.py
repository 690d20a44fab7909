"""MIG instances offered to the kubelet: whole, each to one container, under the names NVIDIA's plugin gives them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.core.kubelet.offers import mig_resource
from nodeagent.ports.gpus import GpuReading, MigReading
from nodeagent.units import GIB, Bytes, GpuUuid, SharePolicy
from tests.kit.fakes.kubelet import AdmissionError, Container, Pod
from tests.kubelet.place import RESOURCE, Daemon, Place, limits, with_place

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def cut(card: GpuReading, *profiles: str) -> GpuReading:
    """A card in MIG mode with one instance of each profile."""
    instances = tuple(
        MigReading(
            GpuUuid(f"MIG-{card.index:04x}{number:04x}-1111-2222-3333-444444444444"),
            profile,
            gpu_instance=number + 1,
            compute_instance=0,
            memory_total_bytes=Bytes(int(profile.partition(".")[2].removesuffix("gb")) * GIB),
            memory_used_bytes=Bytes(0),
        )
        for number, profile in enumerate(profiles)
    )
    return replace(card, mig=instances)


async def restart(place: Place, strategy: str, *cards: GpuReading) -> None:
    place.mig_strategy, place.readings = strategy, list(cards)
    assert place.daemon is not None
    await place.daemon.close()
    place.daemon = None
    await place.start_daemon()


@with_place(gpus=2)
async def test_mixed_offers_each_profile_beside_whole_cards(place: Place) -> None:
    first, second = place.readings
    await restart(place, "mixed", cut(first, "1g.10gb", "1g.10gb", "3g.40gb"), second)
    await place.kubelet.until(lambda: len(place.kubelet.endpoints) == 3)
    names = (RESOURCE, SMALL, LARGE)
    await place.kubelet.until(lambda: all(place.kubelet.allocatable(name) for name in names))
    counts = {name: len(place.kubelet.allocatable(name)) for name in names}
    assert counts == {RESOURCE: 10, SMALL: 2, LARGE: 1}
    assert all(one.startswith("MIG-") for one in place.kubelet.allocatable(SMALL))
    assert place.kubelet.endpoints[SMALL].numa == dict.fromkeys(place.kubelet.allocatable(SMALL), 0)
    pods = [Pod(f"p{i}", (Container("main", limits=limits(gpumem=100)),)) for i in range(3)]
    used = []
    for pod in pods[:2]:
        await place.kubelet.admit(pod, SMALL)
        cdi = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
        used += cdi["gpus"]
    assert len(set(used)) == 2
    assert place.daemon is not None
    for held in place.daemon.keeper.live().values():
        (device,) = held.record.devices
        assert device.memory_bytes == 10 * GIB, "whole, whatever the pod asks for"
        assert held.record.policy is SharePolicy.EXCLUSIVE
    with pytest.raises(AdmissionError, match=r"mig-1g\.10gb\. Requested: 1, Available: 0"):
        await place.kubelet.admit(pods[2], SMALL)
    await place.kubelet.admit(pods[2], RESOURCE)
    cdi = place.cdi_of(await place.kubelet.start_container(pods[2].uid, "main"))
    assert cdi["gpus"] == [second.uuid], "a share of the whole card, not of an instance"


@with_place(gpus=2)
async def test_single_offers_instances_as_gpus(place: Place) -> None:
    first, second = place.readings
    await restart(place, "single", cut(first, "1g.10gb", "1g.10gb"), cut(second, "1g.10gb"))
    await place.kubelet.until(lambda: len(place.kubelet.allocatable(RESOURCE)) == 3)
    pod = Pod("p")
    await place.kubelet.admit(pod, RESOURCE)
    cdi = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert cdi["gpus"][0].startswith("MIG-")


@with_place(gpus=2)
async def test_single_refuses_cards_that_are_cut_differently(place: Place) -> None:
    first, second = place.readings
    place.mig_strategy, place.readings = "single", [cut(first, "1g.10gb", "3g.40gb"), second]
    assert place.daemon is not None
    await place.daemon.close()
    before = place.kubelet.registered_total
    place.daemon = Daemon(place)
    await place.daemon.start()
    await place.kubelet.until(
        lambda: (
            place.kubelet.registered_total > before and place.kubelet.endpoints[RESOURCE].lists > 0
        )
    )
    assert place.kubelet.endpoints[RESOURCE].devices == {}
    assert place.daemon.manager.problem.startswith("mig_strategy single needs one profile")


@with_place(gpus=2)
async def test_instances_are_not_offered_where_cards_are_shared(place: Place) -> None:
    first, second = place.readings
    await restart(place, "none", cut(first, "3g.40gb"), second)
    assert list(place.kubelet.endpoints) == [RESOURCE]
    assert all(one.startswith(second.uuid) for one in place.kubelet.allocatable(RESOURCE))
    big = Pod("big", (Container("main", limits=limits(gpumem=60 * 1024)),))
    cdi = await place.run(big)
    assert cdi["gpus"] == [second.uuid]


@with_place(gpus=1)
async def test_the_health_of_an_instance_is_its_cards(place: Place) -> None:
    card = cut(place.readings[0], "1g.10gb", "3g.40gb")
    await restart(place, "mixed", card)
    await place.kubelet.until(lambda: len(place.kubelet.allocatable(SMALL)) == 1)
    place.readings = [replace(card, error="GPU is lost")]
    assert place.daemon is not None
    for _ in range(5):
        place.clock.advance(10)
        place.daemon.read_gpus()
    await place.kubelet.until(lambda: not place.kubelet.allocatable(SMALL))
    assert len(place.kubelet.endpoints[SMALL].devices) == 1


def test_names_are_those_of_nvidias_plugin() -> None:
    assert mig_resource("nvidia.com/gpu", "1g.10gb") == SMALL
    assert mig_resource("nvidia.com/gpu", "1g.10gb+me") == "nvidia.com/mig-1g.10gb.me"
