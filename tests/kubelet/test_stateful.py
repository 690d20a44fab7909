"""Any order of pods, starts, ends, kills of the daemon at any commit, restarts of the kubelet and times without a
decision: every pod has exactly its own."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nodeagent import native
from nodeagent.adapters.kubelet.wire import driver_of
from nodeagent.ports.clients import GrantAsk, MemoryAsk
from nodeagent.ports.containers import ContainerAnswer
from nodeagent.ports.kubelet import (
    AllocationState,
    ContainerLimits,
    ContainerRequests,
    PodIdentity,
    RetryLater,
)
from nodeagent.units import GIB, WHOLE_PPM, Bytes, Ppm, SharePolicy
from tests.kit.fakes.kubelet import AdmissionError, Container, Pod, StartError
from tests.kubelet.place import RESOURCE, Crashed, Place

SHAPES = (
    (Container("main"),),
    (Container("main", gpus=2),),
    (Container("fetch", init=True), Container("main")),
    (Container("proxy", init=True, sidecar=True), Container("main")),
    (Container("fetch", init=True, gpus=2), Container("main"), Container("side")),
)


class Decisions:
    """A controller that decided a size for each pod, and may be away."""

    def __init__(self) -> None:
        self.gib: dict[str, int] = {}
        self.away = False

    async def limits(
        self, pod: PodIdentity, container: str, requests: ContainerRequests | None, gpus: int
    ) -> ContainerLimits | None:
        if self.away or pod.uid not in self.gib:
            raise RetryLater(f"no decision for {pod}")
        memory = MemoryAsk(amount_bytes=Bytes(self.gib[pod.uid] * GIB))
        return ContainerLimits(
            GrantAsk(gpus, memory, Ppm(50_000), SharePolicy.HARD), source="queue"
        )


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
        self.decisions = Decisions()
        self.pods: dict[str, Pod] = {}
        self.started: dict[tuple[str, str], str] = {}
        """Grant of every container that has been started."""

    @initialize(
        gpus=st.integers(1, 3), slots=st.integers(2, 24), pods_api=st.booleans(), flat=st.booleans()
    )
    def begin(self, gpus: int, slots: int, pods_api: bool, flat: bool) -> None:
        self.place = self.do(self._make(gpus, slots))
        self.place.kubelet.pods_api = pods_api
        self.place.kubelet.flat_checkpoint = flat

    async def _make(self, gpus: int, slots: int) -> Place:
        place = Place(self.directory, gpus, slots)
        place.sources = [self.decisions]
        await place.kubelet.start()
        await place.start_daemon()
        return place

    def do(self, work):  # type: ignore[no-untyped-def]
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    # --- what happens ---

    @rule(shape=st.sampled_from(SHAPES), gib=st.integers(1, 4), identical=st.integers(1, 4))
    def admit(self, shape: tuple[Container, ...], gib: int, identical: int) -> None:
        """Several at once, whose calls are interleaved."""
        pods = [
            Pod(f"p{len(self.pods) + i}", shape)
            for i in range(identical)
            if len(self.pods) + i < 64
        ]
        for pod in pods:
            self.decisions.gib[pod.uid] = gib

        async def all_of_them() -> list[BaseException | None]:
            return await asyncio.gather(
                *(self.place.kubelet.admit(pod, RESOURCE) for pod in pods), return_exceptions=True
            )

        for pod, error in zip(pods, self.do(all_of_them()), strict=True):
            if error is None:
                self.pods[pod.uid] = pod
            else:
                assert isinstance(error, AdmissionError), error

    @rule(picks=st.lists(st.integers(0, 999), min_size=1, max_size=4))
    def start(self, picks: list[int]) -> None:
        """Start containers for the first time or again, several at once."""
        known = [(uid, c.name) for uid, pod in self.pods.items() for c in pod.containers]
        chosen: list[tuple[str, str]] = []
        for pick in picks if known else ():
            key = known[pick % len(known)]
            if not any(key == other or self._take_turns(key, other) for other in chosen):
                chosen.append(key)
        for key in chosen:  # the devices' last owner has ended before this one begins
            for other in [one for one in self.started if self._take_turns(key, one)]:
                if self._ids(other) != self._ids(key):
                    del self.started[other]

        async def all_of_them():  # type: ignore[no-untyped-def]
            return await asyncio.gather(
                *(self.place.kubelet.start_container(*one) for one in chosen),
                return_exceptions=True,
            )

        for key, answer in zip(chosen, self.do(all_of_them()), strict=True):
            if isinstance(answer, BaseException):
                assert isinstance(answer, StartError), answer
                assert re.search("no decision|free|slots taken|no more GPUs", str(answer)), answer
            else:
                self._started(key, self.place.cdi_of(answer))
                self._given(answer)

    def _given(self, answer: ContainerAnswer) -> None:
        """Check that the name in the answer refers to the driver files that are installed."""
        cdi, named = self.place.cdi, driver_of(answer)
        assert self.place.cdi_of(answer)["driver"] == named
        assert not named or cdi.drivers()[named] == cdi.installed

    @rule(release=st.sampled_from(["", "driver 570", "driver 575", "driver 580"]))
    def another_driver(self, release: str) -> None:
        """Empty: the specifications of the GPUs have nothing in common. What is named already has
        to go on, so it is never taken away then."""
        if release or not any(row.driver for row in self.place.daemon.rows()):  # type: ignore[union-attr]
            self.place.cdi.installed = release

    def _started(self, key: tuple[str, str], cdi: dict[str, object]) -> None:
        uid, container = key
        assert cdi["pod_uid"] == uid
        assert cdi["container"] == container
        before = self.started.get(key)
        assert before in (None, cdi["grant"]), "a restarted container keeps its grant"
        self.started[key] = str(cdi["grant"])

    def _ids(self, key: tuple[str, str]) -> frozenset[str]:
        return frozenset(self.place.kubelet.device_ids(*key))

    def _take_turns(self, one: tuple[str, str], other: tuple[str, str]) -> bool:
        """An init container is over before the container that has its devices next begins."""
        return one[0] == other[0] and bool(self._ids(one) & self._ids(other))

    @rule(pick=st.integers(0, 999))
    def end_pod(self, pick: int) -> None:
        if not self.pods:
            return
        uid = list(self.pods)[pick % len(self.pods)]
        self.place.kubelet.end(uid)
        del self.pods[uid]
        self.started = {key: grant for key, grant in self.started.items() if key[0] != uid}

    @rule()
    def look(self) -> None:
        self.do(self.place.daemon.look())  # type: ignore[union-attr]

    @rule()
    def restart_kubelet(self) -> None:
        self.do(self.place.restart_kubelet())

    @rule()
    def restart_daemon(self) -> None:
        self.do(self.place.restart_daemon())

    @rule(away=st.booleans())
    def controller(self, away: bool) -> None:
        self.decisions.away = away

    @rule(
        crash_in=st.integers(0, 2),
        after=st.booleans(),
        shape=st.sampled_from(SHAPES),
    )
    def killed(self, crash_in: int, after: bool, shape: tuple[Container, ...]) -> None:
        """The daemon dies at one of the next commits, before or after the row is written."""
        daemon = self.place.daemon
        assert daemon is not None
        daemon.allocations.crash_in, daemon.allocations.after = crash_in, after
        pod = Pod(f"k{len(self.pods)}", shape)
        self.decisions.gib[pod.uid] = 1

        async def attempt() -> None:
            dead = asyncio.get_running_loop().create_future()
            manager = daemon.manager
            real = daemon.allocations.commit

            async def commit(rows):  # type: ignore[no-untyped-def]
                try:
                    await real(rows)
                except Crashed:
                    if not dead.done():
                        dead.set_result(None)
                    await asyncio.Event().wait()  # a dead process answers nothing

            manager._ledger.commit = commit  # type: ignore[method-assign]

            async def use() -> None:
                await self.place.kubelet.admit(pod, RESOURCE)
                for container in pod.containers:
                    await self.place.kubelet.start_container(pod.uid, container.name)

            work = asyncio.create_task(use())
            await asyncio.wait({work, dead}, return_when=asyncio.FIRST_COMPLETED)
            await daemon.close()
            await asyncio.gather(work, return_exceptions=True)
            await self.place.start_daemon()

        self.do(attempt())
        if self.place.kubelet.device_ids(pod.uid, "main") and pod.uid in self.place.kubelet.pods:
            self.pods[pod.uid] = pod  # it was admitted; the kubelet goes on trying to start it
        else:
            self.place.kubelet.end(pod.uid)

    # --- what must hold ---

    @invariant()
    def every_container_has_its_own(self) -> None:
        if not hasattr(self, "place"):
            return
        daemon = self.place.daemon
        assert daemon is not None
        assert daemon.errors == []
        grants = daemon.keeper.live()
        for (uid, container), grant in self.started.items():
            record = grants[grant].record  # type: ignore[index]
            assert record.container is not None
            assert record.container.pod_uid == uid
            assert record.container.device_ids == tuple(
                sorted(self.place.kubelet.device_ids(uid, container))
            )
            assert all(one.memory_bytes == self.decisions.gib[uid] * GIB for one in record.devices)
        living = self.started
        for one, grant in living.items():
            for other, its in living.items():
                if one[0] != other[0]:
                    assert grant != its, f"{one} and {other} share a grant"
        used = [
            (device, uid)
            for (uid, container) in living
            for device in set(self.place.kubelet.device_ids(uid, container))
        ]
        owners: dict[str, str] = {}
        for device, uid in used:
            assert owners.setdefault(device, uid) == uid, f"{device} belongs to two pods"
        loads = daemon.keeper.loads()
        for gpu in daemon.gpus.capacities():
            load = loads.get(gpu.uuid)
            assert load is None or (
                load.memory_bytes <= gpu.memory_bytes and load.hard_ppm <= WHOLE_PPM
            )

    def teardown(self) -> None:
        try:
            if hasattr(self, "place"):
                self.do(self._finish())
        finally:
            self.loop.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    async def _finish(self) -> None:
        """When all pods have ended, nothing is left."""
        daemon = self.place.daemon
        assert daemon is not None
        for uid in list(self.place.kubelet.pods):
            self.place.kubelet.end(uid)
        self.place.kubelet._free_ended()
        self.place.kubelet._write_checkpoint()
        for _ in range(3):
            await daemon.look()
        left = daemon.keeper.live()
        rows = [row for row in daemon.rows() if row.state is not AllocationState.RELEASED]
        names = self.place.cdi.names()
        drivers = set(self.place.cdi.drivers()) - {self.place.cdi.driver}
        await daemon.close()
        await self.place.kubelet.stop()
        assert left == {}
        assert rows == []
        assert names == []
        assert drivers == set(), "generations that no device names"


@pytest.mark.skipif(bool(native.locate().missing()), reason="not built: `make build`")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestMachine(Machine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(native.locate().missing()), reason="not built: `make build`")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestMachineMore(Machine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.full
@pytest.mark.skipif(bool(native.locate().missing()), reason="not built: `make build`")
class TestMachineLong(Machine.TestCase):  # type: ignore[name-defined,misc]
    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
