"""A container that starts is looked up by its pod's name: a List of PodResources frees devices in the kubelet."""

from __future__ import annotations

import pytest

from nodeagent.adapters.kubelet.records import PODS_SOCKET, KubeletFiles
from nodeagent.ports.kubelet import KubeletAway
from tests.kit.fakes.kubelet import Container, Pod
from tests.kubelet.place import RESOURCE, Place, limits, with_place

POD = Pod("one", (Container("main", limits=limits(gpumem=1024)),))


async def started(place: Place) -> int:
    """Lists of PodResources that the start of a container took."""
    await place.kubelet.admit(POD, RESOURCE)
    before = place.kubelet.lists
    cdi = place.cdi_of(await place.kubelet.start_container(POD.uid, "main"))
    assert cdi["pod_uid"] == POD.uid
    assert place.daemon is not None
    (held,) = place.daemon.keeper.live().values()
    assert held.record.name == "default/one/main"
    return place.kubelet.lists - before


@with_place(gpus=1, slots=10)
async def test_a_start_lists_nothing_where_the_pods_name_is_known(place: Place) -> None:
    assert await started(place) == 0


@with_place(gpus=1, slots=10)
async def test_a_kubelet_before_1_34_is_listed(place: Place) -> None:
    place.kubelet.gets_pods = False
    assert await started(place) == 1


@with_place(gpus=1, slots=10)
async def test_without_a_name_the_kubelet_is_listed(place: Place) -> None:
    place.kubelet.pods_api = False
    await place.restart_kubelet()
    (place.kubelet.root / PODS_SOCKET).unlink(missing_ok=True)
    assert await started(place) == 1


@with_place(gpus=1, slots=10)
async def test_nothing_is_listed_once_the_node_is_withdrawn(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    before = place.kubelet.lists
    await daemon.look()
    assert place.kubelet.lists == before + 1
    daemon.manager.stop_reconciling()
    await daemon.look()
    assert place.kubelet.lists == before + 1


@with_place(gpus=1, slots=10)
async def test_a_pod_that_the_kubelet_does_not_know_is_no_answer(place: Place) -> None:
    records = KubeletFiles(place.kubelet.root, {RESOURCE}, place.wire)
    with pytest.raises(KubeletAway, match="pod none in namespace default not found"):
        await records.listings_of("default", "none")
