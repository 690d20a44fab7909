"""The device plugin against a kubelet over real sockets. Long, for all tests share one kubelet's place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nodeagent.core.kubelet.offers import OfferRules
from nodeagent.ports.kubelet import Allocation
from nodeagent.shell.pods.deviceplugin import manager as module
from nodeagent.shell.pods.deviceplugin.manager import DevicePluginSettings
from nodeagent.units import GIB
from tests.kit.fakes.kubelet import AdmissionError, Container, Pod, StartError
from tests.kubelet.place import RESOURCE, Crashed, Place, limits, with_place


@with_place(gpus=2, slots=10)
async def test_all_slots_are_offered_with_their_numa_node(place: Place) -> None:
    endpoint = place.kubelet.endpoints[RESOURCE]
    assert len(endpoint.devices) == 20
    assert all(endpoint.devices.values())
    assert endpoint.pre_start
    assert endpoint.preferred
    for index, gpu in enumerate(place.readings):
        assert {endpoint.numa[f"{gpu.uuid}::{slot}"] for slot in range(10)} == {index % 2}


@with_place()
async def test_a_pod_gets_what_it_asks_for(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=8192, gpucores=30)),))
    cdi = await place.run(pod)
    assert place.daemon is not None
    (held,) = place.daemon.keeper.live().values()
    assert cdi["grant"] == held.record.grant
    assert cdi["pod_uid"] == pod.uid
    (device,) = held.record.devices
    assert device.memory_bytes == 8 * GIB
    assert device.share_ppm == 300_000
    assert held.record.name == "default/trainer/main"
    (slot,) = place.kubelet.device_ids(pod.uid)
    assert slot.startswith(device.gpu)


@with_place()
async def test_a_restarted_container_has_the_same_grant_and_no_wait(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    first = await place.run(pod)
    again = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert again == first
    await place.restart_daemon()
    after = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert after["grant"] == first["grant"]
    await place.restart_kubelet()
    last = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert last["grant"] == first["grant"]


@with_place()
async def test_init_containers_share_the_grant_of_the_container_after_them(place: Place) -> None:
    pod = Pod(
        "trainer",
        (
            Container("fetch", init=True, limits=limits(gpumem=2048)),
            Container("main", limits=limits(gpumem=4096)),
        ),
    )
    await place.kubelet.admit(pod, RESOURCE)
    assert place.kubelet.device_ids(pod.uid, "fetch") == place.kubelet.device_ids(pod.uid, "main")
    fetch = place.cdi_of(await place.kubelet.start_container(pod.uid, "fetch"))
    main = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert fetch["grant"] == main["grant"]
    assert place.daemon is not None
    (held,) = place.daemon.keeper.live().values()
    assert held.record.devices[0].memory_bytes == 4 * GIB


@with_place()
async def test_containers_side_by_side_have_grants_of_their_own(place: Place) -> None:
    pod = Pod(
        "pair",
        (
            Container("proxy", init=True, sidecar=True, limits=limits(gpumem=1024)),
            Container("main", limits=limits(gpumem=2048)),
            Container("side", limits=limits(gpumem=3072)),
        ),
    )
    await place.kubelet.admit(pod, RESOURCE)
    grants = set()
    for name in ("proxy", "main", "side"):
        grants.add(place.cdi_of(await place.kubelet.start_container(pod.uid, name))["grant"])
    assert len(grants) == 3
    assert place.daemon is not None
    held = place.daemon.keeper.live().values()
    assert sorted(one.record.devices[0].memory_bytes // GIB for one in held) == [1, 2, 3]


@with_place()
async def test_a_container_with_two_gpus_has_them_apart(place: Place) -> None:
    pod = Pod("wide", (Container("main", gpus=2, limits=limits(gpumem=1024)),))
    cdi = await place.run(pod)
    assert sorted(cdi["gpus"]) == sorted(one.uuid for one in place.readings)


@with_place(gpus=1, slots=4)
async def test_what_does_not_fit_is_refused_with_the_reason_and_starts_when_it_does(
    place: Place,
) -> None:
    big = Pod("big", (Container("main", limits=limits(gpumem=70 * 1024)),))
    late = Pod("late", (Container("main", limits=limits(gpumem=20 * 1024)),))
    await place.run(big)
    await place.kubelet.admit(late, RESOURCE)
    with pytest.raises(StartError, match="10Gi of 80Gi free"):
        await place.kubelet.start_container(late.uid, "main")
    place.kubelet.end(big.uid)
    assert place.daemon is not None
    await place.daemon.look()
    await place.daemon.look()
    answer = await place.kubelet.start_container(late.uid, "main")
    assert place.cdi_of(answer)["pod_uid"] == late.uid


@with_place()
async def test_released_only_when_the_records_and_the_cgroup_agree_twice(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    await place.run(pod)
    daemon = place.daemon
    assert daemon is not None
    place.make_cgroup(pod.uid)
    place.kubelet.end(pod.uid)
    for _ in range(3):
        await daemon.look()
    assert len(daemon.keeper.live()) == 1, "its cgroup is still there"
    (place.directory / "cgroup" / "systemd" / "kubepods" / f"pod{pod.uid}").rmdir()
    await daemon.look()
    assert len(daemon.keeper.live()) == 1, "seen gone once"
    await daemon.look()
    assert daemon.keeper.live() == {}
    assert place.cdi.names() == []
    assert daemon.rows() == []


@with_place()
async def test_a_row_that_was_written_too_late_for_an_answer_is_released(place: Place) -> None:
    """Only the ledger has it, which is read at a start alone."""
    daemon = place.daemon
    assert daemon is not None
    real = daemon.allocations.commit

    async def slowly(rows: Sequence[Allocation]) -> None:
        writing = asyncio.ensure_future(real(rows))
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.shield(writing)  # who waited for it went away

    manager: Any = daemon.manager
    manager._ledger.commit = slowly
    pod = Pod("late", (Container("main", limits=limits(gpumem=1024)),))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "ALLOCATE_DEADLINE_S", 0.2)
        with pytest.raises(AdmissionError, match=r"was not written within 0\.2 s"):
            await place.kubelet.admit(pod, RESOURCE)
    manager._ledger.commit = real
    assert len(daemon.rows()) == 1, "written all the same"
    await daemon.look()
    await daemon.look()
    assert daemon.rows() == []
    await place.run(Pod("next", (Container("main", limits=limits(gpumem=1024)),)))


@with_place()
async def test_a_busy_disk_rejects_no_pod_and_one_that_hangs_delays_one_pod_alone(
    place: Place,
) -> None:
    """The kubelet rejects for good: 1 of 200 pods failed in an upgrade since a sync took longer than a second."""
    assert module.ALLOCATE_DEADLINE_S >= 5
    daemon = place.daemon
    assert daemon is not None
    real = daemon.allocations.commit
    takes_s = 1.2

    async def slowly(rows: Sequence[Allocation]) -> None:
        await asyncio.sleep(takes_s)
        await real(rows)

    def asking(name: str) -> Pod:
        return Pod(name, (Container("main", limits=limits(gpumem=1024)),))

    manager: Any = daemon.manager
    manager._ledger.commit = slowly
    await place.run(asking("busy"))
    takes_s = 3600
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "ALLOCATE_DEADLINE_S", 0.2)
        with pytest.raises(AdmissionError, match=r"within 0\.2 s"):
            await place.kubelet.admit(asking("first"), RESOURCE)
        patched.setattr(module, "ALLOCATE_AGAIN_S", 0.1)
        with pytest.raises(AdmissionError, match=r"within 0\.1 s"):
            await place.kubelet.admit(asking("second"), RESOURCE)
        takes_s = 0
        patched.setattr(module, "ALLOCATE_AGAIN_S", 30.0)
        await place.run(asking("third"))
        takes_s = 3600
        with pytest.raises(AdmissionError, match=r"within 0\.2 s"):
            await place.kubelet.admit(asking("fourth"), RESOURCE)
    manager._ledger.commit = real


@with_place()
async def test_nothing_is_released_while_the_kubelet_is_away(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    await place.run(pod)
    daemon = place.daemon
    assert daemon is not None
    await place.kubelet.stop()
    for _ in range(4):
        await daemon.look()
    assert len(daemon.keeper.live()) == 1
    assert "kubelet.sock" in daemon.manager.figures.away
    await place.kubelet.start()


@with_place()
async def test_a_sick_gpu_is_withdrawn_with_all_its_slots_and_comes_back(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    well = place.readings[0]
    place.readings[0] = replace(well, error="GPU is lost")
    for _ in range(5):
        daemon.read_gpus()
    await place.kubelet.until(lambda: len(place.kubelet.allocatable(RESOURCE)) == 10)
    assert all(
        str(one).startswith(place.readings[1].uuid) for one in place.kubelet.allocatable(RESOURCE)
    )
    place.readings[0] = well
    for _ in range(30):  # an hour at most: a GPU that keeps failing waits that long
        place.clock.advance(130)
        daemon.read_gpus()
        await asyncio.sleep(0)
    await place.kubelet.until(lambda: len(place.kubelet.allocatable(RESOURCE)) == 20)


@with_place(gpus=2, slots=10)
async def test_a_gpu_is_taken_off_and_put_back_while_pods_run(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    await place.run(Pod("trainer", (Container("main", limits=limits(gpumem=1024)),)))
    grants = set(daemon.keeper.live())
    hidden = frozenset(gpu.uuid for gpu in place.readings)
    rules = OfferRules("acme.io/other", 3, exclude_uuids=hidden)
    daemon.manager.configure(DevicePluginSettings(rules, "spread"))
    await place.kubelet.until(lambda: not place.kubelet.endpoints[RESOURCE].devices)
    assert set(daemon.keeper.live()) == grants, "what runs goes on"
    daemon.manager.configure(DevicePluginSettings(OfferRules("acme.io/other", 3), "spread"))
    await place.kubelet.until(lambda: len(place.kubelet.endpoints[RESOURCE].devices) == 20)


@with_place(gpus=3, slots=10)
async def test_a_card_with_slots_of_its_own_is_shared_by_as_many(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    await daemon.close()
    place.card_slots = {"0": 1, place.readings[1].uuid: 2}
    daemon = await place.start_daemon()
    for number in range(4):
        pod = Pod(f"p{number}", (Container("main", limits=limits(gpumem=1024, gpucores=5)),))
        await place.run(pod)

    def each() -> dict[int, int]:
        counted = Counter(str(one).partition("::")[0] for one in place.kubelet.endpoints[RESOURCE].devices)  # fmt: skip
        return {gpu.index: counted[gpu.uuid] for gpu in place.readings}

    assert each() == {0: 1, 1: 2, 2: 10}
    used = Counter(held.record.devices[0].gpu for held in daemon.keeper.live().values())
    assert used[place.readings[0].uuid] <= 1
    assert used[place.readings[1].uuid] <= 2
    assert {gpu.index: gpu.slots for gpu in daemon.gpus.capacities()} == each()
    daemon.manager.configure(DevicePluginSettings(OfferRules(RESOURCE, 10), "pack"))
    assert each() == {0: 1, 1: 2, 2: 10}, "they are of the registration"


@with_place(slots=3)
async def test_devices_that_are_not_offered_are_refused(place: Place) -> None:
    daemon = place.daemon
    assert daemon is not None
    uuid = place.readings[0].uuid
    for ids in (
        ["sda"],
        [f"{uuid}::3"],
        [f"{uuid}::-1"],
        [f"{uuid[:-1]}9::0"],
        [],
        ["../../etc"],
        [f"{uuid}::0\n"],
    ):
        with pytest.raises(ValueError, match=r"device|offered"):
            await daemon.manager.allocate(RESOURCE, [ids])
    assert daemon.rows() == []


@with_place()
async def test_a_checkpoint_that_says_nothing_yet_makes_the_kubelet_try_again(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    place.kubelet.checkpoint_fails = True
    await place.kubelet.admit(pod, RESOURCE)
    with pytest.raises(StartError, match="does not have a container with these devices yet"):
        await place.kubelet.start_container(pod.uid, "main")
    place.kubelet.checkpoint_fails = False
    place.kubelet._write_checkpoint()
    assert place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))["pod_uid"] == pod.uid


@with_place()
async def test_old_checkpoints_and_huge_answers_are_read(place: Place) -> None:
    place.kubelet.flat_checkpoint = True
    place.kubelet.padding_bytes = 16 << 20
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    assert (await place.run(pod))["pod_uid"] == pod.uid


@with_place()
async def test_a_damaged_checkpoint_is_no_knowledge(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    await place.run(pod)
    daemon = place.daemon
    assert daemon is not None
    place.kubelet.checkpoint_path.write_text('{"Data": {"PodDeviceEntries": [{"PodUID": 7}]}}')
    place.kubelet.end(pod.uid)
    for _ in range(3):
        await daemon.look()
    assert len(daemon.keeper.live()) == 1
    with pytest.raises(StartError, match="not a checkpoint"):
        await place.kubelet.start_container(pod.uid, "main")


@with_place()
async def test_cdi_that_cannot_be_written_is_told_and_tried_again(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    place.cdi.fails = "no space left on /var/run/cdi"
    await place.kubelet.admit(pod, RESOURCE)
    with pytest.raises(StartError, match="no space left on /var/run/cdi"):
        await place.kubelet.start_container(pod.uid, "main")
    place.cdi.fails = ""
    cdi = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert place.daemon is not None
    assert [cdi["grant"]] == list(place.daemon.keeper.live())


@with_place()
async def test_a_lost_ledger_of_allocations_is_rebuilt_from_the_checkpoint(place: Place) -> None:
    pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
    first = await place.run(pod)
    assert place.daemon is not None
    await place.daemon.close()
    (place.directory / "allocations.sqlite").write_bytes(b"not a database" * 100)
    daemon = await place.start_daemon()
    assert daemon.allocations.was_rebuilt
    again = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert again["grant"] == first["grant"]
    assert [row.grant for row in daemon.rows()] == [first["grant"]]


@with_place()
async def test_an_answer_names_the_driver_it_was_given_with_for_as_long_as_it_lives(
    place: Place,
) -> None:
    first, second = (Pod(name, (Container("main"),)) for name in ("first", "second"))
    before = (await place.run(first))["driver"]
    assert place.cdi.drivers() == {before: "driver 570"}
    place.cdi.installed = "driver 575"
    assert place.daemon is not None
    await place.daemon.look()
    after = (await place.run(second))["driver"]
    assert after != before
    assert place.cdi.drivers() == {before: "driver 570", after: "driver 575"}, (
        "no container started"
    )
    for restart in (place.restart_daemon, place.restart_kubelet):
        await restart()
        (row,) = [row for row in place.daemon.rows() if row.pod and row.pod.uid == first.uid]
        assert place.cdi.read(row.nonce)["driver"] == row.driver == before, "before any start"
        again = place.cdi_of(await place.kubelet.start_container(first.uid, "main"))
        assert again["driver"] == before
        assert place.cdi.drivers() == {before: "driver 575", after: "driver 575"}, (
            "the name stays, what it stands for is what is installed"
        )
    place.kubelet.end(first.uid)
    for _ in range(2):
        await place.daemon.look()
    assert place.cdi.drivers() == {after: "driver 575"}


@with_place()
async def test_answers_of_an_earlier_release_go_on_working(place: Place) -> None:
    """They name the grant alone, and so do rows of the ledger and the kubelet's checkpoint."""
    place.cdi.installed = ""
    assert place.daemon is not None
    await place.daemon.look()
    pod = Pod("old", (Container("main"),))
    await place.kubelet.admit(pod, RESOURCE)
    assert [row.driver for row in place.daemon.rows()] == [""]
    place.cdi.installed = "driver 570"
    daemon = await place.restart_daemon()
    assert daemon.manager._cdi.driver
    answer = await place.kubelet.start_container(pod.uid, "main")
    assert len(answer.cdi_devices) == 1
    assert place.cdi_of(answer)["driver"] == "", "all of it is in the grant's own file"


@pytest.mark.parametrize(("remembered", "named"), [("", "d" * 32), ("d" * 32, "")])
def test_what_the_runtime_is_told_goes_before_what_we_remember(remembered: str, named: str) -> None:
    """A release that knows no drivers, put back for a while, leaves rows without one."""

    @with_place()
    async def run(place: Place) -> None:
        assert place.daemon is not None
        pod, real = Pod("trainer", (Container("main"),)), place.cdi.answer
        place.cdi.driver = remembered
        place.cdi.answer = lambda nonce, gpus, driver: real(nonce, gpus, named)  # type: ignore[method-assign]
        await place.kubelet.admit(pod, RESOURCE)
        assert [row.driver for row in place.daemon.rows()] == [remembered]
        answer = await place.kubelet.start_container(pod.uid, "main")
        assert place.cdi_of(answer)["driver"] == named
        assert [row.driver for row in place.daemon.rows()] == [named]

    run()


@with_place()
async def test_a_row_that_was_lost_has_its_driver_from_the_checkpoint(place: Place) -> None:
    pod = Pod("trainer", (Container("main"),))
    first = await place.run(pod)
    assert place.daemon is not None
    await place.daemon.close()
    (place.directory / "allocations.sqlite").write_bytes(b"not a database" * 100)
    place.cdi.installed = "driver 575"
    daemon = await place.start_daemon()
    assert first["driver"] not in place.cdi.drivers()
    again = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    assert again["driver"] == first["driver"]
    assert place.cdi.drivers()[first["driver"]] == "driver 575"
    assert [row.driver for row in daemon.rows()] == [first["driver"]]


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_allocating_the_pod_fails_and_nothing_is_left(after: bool) -> None:
    @with_place()
    async def run(place: Place) -> None:
        daemon = place.daemon
        assert daemon is not None
        daemon.allocations.crash_in, daemon.allocations.after = 0, after
        with pytest.raises(Crashed):
            await daemon.manager.allocate(RESOURCE, [[f"{place.readings[0].uuid}::0"]])
        daemon = await place.restart_daemon()
        assert len(daemon.rows()) == int(after)
        pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
        await place.run(pod)
        await daemon.look()
        await daemon.look()
        assert [row.pod.uid for row in daemon.rows() if row.pod] == [pod.uid]
        assert len(daemon.rows()) == 1, "the orphan is gone"

    run()


@with_place(gpus=1, slots=2)
async def test_no_more_pods_than_slots(place: Place) -> None:
    for number in range(2):
        await place.run(Pod(f"p{number}", (Container("main", limits=limits(gpumem=100)),)))
    with pytest.raises(AdmissionError, match="requested number of devices unavailable"):
        await place.kubelet.admit(Pod("p3", (Container("main"),)), RESOURCE)


@with_place()
async def test_a_socket_removed_by_somebody_is_served_again(place: Place) -> None:
    before = place.kubelet.registered_total
    for path in place.kubelet.plugins_dir.glob("sluice-*.sock"):
        path.unlink()
    await place.kubelet.until(lambda: place.kubelet.registered_total > before)
    await place.kubelet.until(lambda: place.kubelet.allocatable(RESOURCE))
    assert len(list(place.kubelet.plugins_dir.glob("sluice-*.sock"))) == 1


@with_place(start=False)
async def test_a_kubelet_that_comes_later_is_found(place: Place) -> None:
    from tests.kubelet.place import Daemon

    daemon = place.daemon = Daemon(place)
    await daemon.start()
    await asyncio.sleep(0.1)
    assert not daemon.server.registered
    await place.kubelet.start()
    await place.kubelet.until(lambda: place.kubelet.allocatable(RESOURCE))


@with_place(gpus=3)
async def test_gpus_that_are_not_offered_are_never_used(place: Place) -> None:
    assert place.daemon is not None
    place.hidden = frozenset({place.readings[0].uuid})
    await place.restart_daemon()
    endpoint = place.kubelet.endpoints[RESOURCE]
    await place.kubelet.until(lambda: len(endpoint.devices) == 20)
    pods = [Pod(f"p{i}", (Container("main", limits=limits(gpumem=50 * 1024)),)) for i in range(3)]
    used = [(await place.run(pod))["gpus"][0] for pod in pods[:2]]
    assert sorted(used) == sorted(one.uuid for one in place.readings[1:])
    await place.kubelet.admit(pods[2], RESOURCE)
    with pytest.raises(StartError, match="30Gi of 80Gi free"):
        await place.kubelet.start_container(pods[2].uid, "main")
