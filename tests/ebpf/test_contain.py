"""Opens denied to a container for real, by a program of the kernel's at its cgroup, and a container ended; a stand-in
device plays the GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf.pins import BPFFS
from tests.ebpf.daemon import is_up
from tests.ebpf.live import LOADERS, STAND_IN, Opener, needs_ebpf
from tests.kit.cgroups import Container, answers, pods
from tests.kit.node import Node, until
from tests.kit.workplace import workplace

pytestmark = [needs_ebpf, pytest.mark.root]
POD, OTHER = "1b4e28ba-2fa1-11d2-883f-0000000000b1", "1b4e28ba-2fa1-11d2-883f-0000000000b2"
EPERM = 1
SETTINGS = f'[ebpf]\nenabled = "on"\ndevices = "{STAND_IN}"\n'
CONTAINED_S, KILLED_S = 3.0, 5.0
SLACK = 2.5


@pytest.fixture
def place() -> Iterator[dict[str, Container]]:
    with pods("unified", its=f"{POD}/c1", beside=f"{POD}/c2", other=f"{OTHER}/c1") as made:
        yield made


def node_with(directory: Path, grants: str, loader: str = "auto") -> Node:
    settings = f'{SETTINGS}loader = "{loader}"\n'
    return Node(directory, settings=f'{settings}[detection]\ngrants = "{grants}"\n')


def refusal_of(container: Container) -> Path:
    """Where the daemon keeps what refuses opens to it."""
    name = f"deny-{container.directory.stat().st_ino}"
    return next(BPFFS.glob(f"sluice-*/{name}"), BPFFS / name)


@pytest.mark.parametrize("loader", LOADERS)
def test_an_opener_without_an_allocation_is_refused_and_held_and_nobody_else(
    place: dict[str, Container], loader: str
) -> None:
    with workplace() as directory:
        node = node_with(directory, "contain", loader)
        openers: list[Opener] = []
        try:
            node.start()
            until("the programs run", lambda: is_up(node), 60)
            opener = Opener("openat", place["its"].directory)
            beside = Opener("openat", place["beside"].directory)
            openers += [opener, beside]
            assert opener.open() == 0
            until("its opens are refused", lambda: refusal_of(place["its"]).exists())
            until("its container is held", place["its"].held, CONTAINED_S * SLACK)
            assert not refusal_of(place["beside"]).exists()
            assert not place["beside"].held()
            place["its"].let_go()
            assert opener.open() == EPERM
            for way in ("openat", "io_uring"):
                again = Opener(way, place["its"].directory)
                openers.append(again)
                assert again.open() == EPERM, way
            assert beside.open() == 0
            acts = [event["text"] for event in node.cli_json("events", "--kind", "act")]
            mine = [text.partition(":")[0] for text in acts if f"pid {opener.pid} " in text]
            # What the open brought is taken back 10 s after it; a busy machine may be there already.
            done = [act for act in mine if not act.startswith("undo")]
            assert done == ["deny_opens", "freeze"]
        finally:
            for one in openers:
                os.kill(one.pid, signal.SIGKILL)
            for container in place.values():
                container.let_go()
            for one in openers:
                one.close()
            node.stop()


def test_kill_ends_the_container_of_an_opener_and_no_other(place: dict[str, Container]) -> None:
    with workplace() as directory:
        node = node_with(directory, "kill")
        try:
            node.start()
            until("the programs run", lambda: is_up(node), 60)
            accomplice = place["its"].run("cat", below="inner")
            neighbours = [place["beside"].run("cat"), place["other"].run("cat")]
            assert all(answers(one) for one in [accomplice, *neighbours])
            opener = Opener("openat", place["its"].directory)
            assert opener.open() == 0
            until("its container is held first", place["its"].held, CONTAINED_S * SLACK)
            until("it is ended", lambda: not place["its"].pids(), KILLED_S * SLACK)
            assert accomplice.wait(60) == -signal.SIGKILL
            assert [answers(one) for one in neighbours] == [True, True]
            opener.close()
            until("what held it is gone", lambda: not refusal_of(place["its"]).exists())
        finally:
            node.stop()
