"""The kubelet gives one device to two pods, as it does when PodResources is listed during an Allocate."""

from __future__ import annotations

from typing import Any

from nodeagent.units import GIB
from tests.kit.fakes.kubelet import Container, Pod
from tests.kubelet.place import RESOURCE, Place, limits, with_place


def twins(**wanted: int) -> list[Pod]:
    return [Pod(name, (Container("main", limits=limits(**wanted)),)) for name in ("one", "two")]


async def given_twice(place: Place, one: Pod, two: Pod) -> None:
    """The kubelet gives the devices of the first pod to the second as well."""
    await place.kubelet.admit(one, RESOURCE)
    place.kubelet.given_again = place.kubelet.device_ids(one.uid)
    await place.kubelet.admit(two, RESOURCE)
    place.kubelet.given_again = ()
    assert place.kubelet.device_ids(one.uid) == place.kubelet.device_ids(two.uid)


@with_place(gpus=1, slots=10)
async def test_two_pods_with_one_device_have_a_grant_each(place: Place) -> None:
    one, two = twins(gpumem=30 * 1024)
    await given_twice(place, one, two)
    daemon = place.daemon
    assert daemon is not None
    found: dict[str, Any] = {}
    for pod in (two, one, two):  # the last one restarts
        cdi = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
        assert cdi["pod_uid"] == pod.uid
        assert found.setdefault(pod.uid, cdi["grant"]) == cdi["grant"]
    assert len(set(found.values())) == 2
    held = daemon.keeper.live()
    assert {held[grant].record.name for grant in found.values()} == {
        "default/one/main",
        "default/two/main",
    }
    assert [one.record.devices[0].memory_bytes // GIB for one in held.values()] == [30, 30]
    place.kubelet.end(one.uid)
    for _ in range(2):
        await daemon.look()
    assert list(daemon.keeper.live()) == [found[two.uid]], "the other one stays"
    await place.restart_daemon()
    cdi = place.cdi_of(await place.kubelet.start_container(two.uid, "main"))
    assert cdi["grant"] == found[two.uid]


@with_place(gpus=1, slots=10)
async def test_of_two_pods_with_one_device_the_one_without_room_waits(place: Place) -> None:
    one, two = twins(gpumem=50 * 1024)
    await given_twice(place, one, two)
    daemon = place.daemon
    assert daemon is not None
    answers = {pod.uid: await place.kubelet.start_container(pod.uid, "main") for pod in (one, two)}
    (runs,) = [uid for uid, answer in answers.items() if place.has_cdi(answer)]
    (waits,) = answers.keys() - {runs}
    (held,) = daemon.keeper.live().values()
    assert held.record.container is not None
    assert held.record.container.pod_uid == runs
    place.kubelet.end(runs)
    for _ in range(2):
        await daemon.look()
    answer = await place.kubelet.start_container(waits, "main")
    assert place.cdi_of(answer)["pod_uid"] == waits


@with_place()
async def test_a_pod_with_one_of_the_devices_of_another_ends_no_grant(place: Place) -> None:
    wide = Pod("wide", (Container("main", gpus=2, limits=limits(gpumem=1024)),))
    narrow = Pod("narrow", (Container("main", limits=limits(gpumem=1024)),))
    first = await place.run(wide)
    place.kubelet.given_again = place.kubelet.device_ids(wide.uid)[:1]
    await place.kubelet.admit(narrow, RESOURCE)
    daemon = place.daemon
    assert daemon is not None
    second = place.cdi_of(await place.kubelet.start_container(narrow.uid, "main"))
    assert set(daemon.keeper.live()) == {first["grant"], second["grant"]}
