"""GPUs that the Node's annotation `hami.io/device-cordon` names: no new pod, whatever the kubelet chose, and what runs stays."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nodeagent.settings.daemon import QueueSettings
from nodeagent.shell.queue.capacity import CapacityReader
from tests.kit.fakes.kubelet import Container, Pod, StartError
from tests.kubelet.place import RESOURCE, Daemon, Place, limits, with_place


def cordon(daemon: Daemon, *uuids: str) -> None:
    """As the watch of the Node reports it."""
    daemon.gpus.cordon(frozenset(uuids))
    daemon.keeper.apply(daemon.gpus.seen())


def asks(name: str) -> Pod:
    return Pod(name, (Container("main", limits=limits(gpumem=1024)),))


@with_place()
async def test_new_pods_go_elsewhere_and_wait_where_there_is_no_other(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    first = asks("first")
    (held,) = (await place.run(first))["gpus"]
    cordon(daemon, held)
    (other,) = (await place.run(asks("second")))["gpus"]
    assert other != held
    cordon(daemon, held, other)
    third = asks("third")
    await place.kubelet.admit(third, RESOURCE)
    with pytest.raises(
        StartError, match=r"cordoned by the Node's annotation hami\.io/device-cordon"
    ):
        await place.kubelet.start_container(third.uid, "main")
    again = place.cdi_of(await place.kubelet.start_container(first.uid, "main"))
    assert again["gpus"] == [held], "what runs may start again"
    cordon(daemon, held)
    assert place.cdi_of(await place.kubelet.start_container(third.uid, "main"))["gpus"] == [other]


@with_place()
async def test_the_queue_is_told_and_sick_ones_stay_sick(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    keeper: Any = daemon.keeper
    reader = CapacityReader(QueueSettings(), "n", keeper, daemon.gpus, time.monotonic_ns)
    one, other = (gpu.uuid for gpu in daemon.gpus.capacities())

    def health() -> dict[str, str]:
        return {gpu.uuid: gpu.health for gpu in reader.capacity().gpus}

    assert health() == {one: "healthy", other: "healthy"}
    cordon(daemon, one)
    assert health() == {one: "cordoned", other: "healthy"}
    daemon.gpus.withhold(one, True)
    assert health()[one] == "recovering"
