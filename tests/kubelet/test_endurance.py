"""Kubelet restarts and kills of the daemon, many times."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest

from tests.kit.fakes.kubelet import AdmissionError, Container, Pod, StartError
from tests.kit.places import REPO
from tests.kubelet.place import RESOURCE, Place, limits, place, with_place

GPUS, SLOTS, MAX_PODS = 2, 20, 24
REGISTERED_S = 120
"""Seconds for a daemon to start and register beside the load of the other tests."""


@pytest.mark.parametrize(
    "restarts", [20, pytest.param(500, marks=[pytest.mark.full, pytest.mark.timeout(1200)])]
)
def test_registered_again_after_every_restart_of_the_kubelet(restarts: int) -> None:
    @with_place()
    async def run(place: Place) -> None:
        pod = Pod("trainer", (Container("main", limits=limits(gpumem=1024)),))
        first = await place.run(pod)
        descriptors = _descriptors()
        assert place.daemon is not None
        server = place.daemon.server
        for number in range(restarts):
            await place.restart_kubelet()
            assert len(place.kubelet.allocatable(RESOURCE)) == 20, f"restart {number}"
            # The kubelet has the devices before its answer is there: one that is restarted in
            # between answers nothing.
            async with asyncio.timeout(10):
                while server.registrations_total < number + 2:
                    await asyncio.sleep(0.002)
        assert server.registrations_total == restarts + 1
        assert len(list(place.kubelet.plugins_dir.glob("sluice-*.sock"))) == 1
        assert _descriptors() < descriptors + 20, "descriptors are not lost"
        again = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
        assert again["grant"] == first["grant"]

    run()


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Round:
    """Pods admitted and grants made before the daemon was killed."""

    def __init__(self) -> None:
        self.admitted: dict[str, Pod] = {}
        self.grants: dict[str, str] = {}


async def _use(place: Place, pod: Pod, told: Round) -> None:
    try:
        if pod.uid not in told.admitted:
            await place.kubelet.admit(pod, RESOURCE)
            told.admitted[pod.uid] = pod
        cdi = place.cdi_of(await place.kubelet.start_container(pod.uid, "main"))
    except (AdmissionError, StartError):
        return
    before = told.grants.setdefault(pod.uid, str(cdi["grant"]))
    assert before == cdi["grant"], "an acknowledged start was lost"


@contextlib.asynccontextmanager
async def _victim(place: Place) -> AsyncIterator[asyncio.subprocess.Process]:
    """A daemon that is registered; killed at the end."""
    victim = await _started(place)
    try:
        yield victim
    finally:
        if victim.returncode is None:
            victim.kill()
        await victim.wait()


async def _kills(place: Place, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    told = Round()
    for number in range(kills):
        for uid in chance.sample(sorted(told.admitted), max(0, len(told.admitted) - MAX_PODS)):
            place.kubelet.end(uid)
            del told.admitted[uid]
            told.grants.pop(uid, None)
        shape = (Container("main", limits=limits(gpumem=512, gpucores=1)),)
        fresh = [Pod(f"n{number}-{i}", shape) for i in range(chance.randint(1, 4))]
        known = chance.sample(sorted(told.admitted), min(3, len(told.admitted)))
        async with _victim(place):
            work: list[Awaitable[Any]] = [_use(place, pod, told) for pod in fresh]
            work += [_use(place, told.admitted[uid], told) for uid in known]
            running = asyncio.gather(*work)
            await asyncio.wait({running}, timeout=chance.uniform(0, 0.06))
        await running
    async with _victim(place):
        for pod in list(told.admitted.values()):
            await _use(place, pod, told)
        assert told.grants.keys() == told.admitted.keys(), "every acknowledged allocation starts"
        assert len(set(told.grants.values())) == len(told.grants), "no grant is given twice"


async def _started(place: Place) -> asyncio.subprocess.Process:
    registered = place.kubelet.registered_total
    victim = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "tests.kubelet.victim",
            str(place.directory),
            str(GPUS),
            str(SLOTS),
        ),
        cwd=REPO,
        stderr=(place.directory / "log").open("ab"),
    )
    try:
        await place.kubelet.until(
            lambda: (
                place.kubelet.registered_total > registered and place.kubelet.allocatable(RESOURCE)
            ),
            REGISTERED_S,
        )
    except TimeoutError as error:
        ended = victim.returncode
        if ended is None:
            for number in (signal.SIGUSR2, signal.SIGUSR1):
                victim.send_signal(number)
                await asyncio.sleep(1)
            victim.kill()
            await victim.wait()
        log = (place.directory / "log").read_text(errors="replace")[-4000:]
        raise AssertionError(
            f"not registered within {REGISTERED_S} s: {place.kubelet.registered_total - registered} "
            f"registrations, exit status {ended}, endpoints {place.kubelet.endpoints}, "
            f"log: {' | '.join(log.splitlines())}"
        ) from error
    return victim


@pytest.mark.parametrize(
    "kills",
    [
        5,
        pytest.param(40, marks=[pytest.mark.faults, pytest.mark.timeout(900)]),
        pytest.param(1000, marks=[pytest.mark.full, pytest.mark.timeout(3000)]),
    ],
)
def test_killed_while_it_answers_nothing_acknowledged_is_lost_or_given_twice(kills: int) -> None:
    async def run() -> None:
        async with place(GPUS, SLOTS, start=False) as made:
            await made.kubelet.start()
            await _kills(made, kills, seed=kills)

    asyncio.run(run())
