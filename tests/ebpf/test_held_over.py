"""Refusals outlive their daemon, and end: by the next daemon, by a person, and with the last one's directory in bpffs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.adapters.ebpf import pins as ebpf_pins
from nodeagent.adapters.ebpf.pins import BPFFS, pins_of
from tests.ebpf.daemon import is_up
from tests.ebpf.live import Opener, needs_ebpf
from tests.kit.cgroups import Container, pods
from tests.kit.held import config, contained, looked, rows, set_policy, undone
from tests.kit.node import Node, until
from tests.kit.places import AT_REST, TENANT
from tests.kit.workplace import workplace

pytestmark = [needs_ebpf, pytest.mark.root]
POD = "1b4e28ba-2fa1-11d2-883f-0000000000c1"
EPERM = 1
HELD_S = 10.0
DEVICE, DEVICE_PATH = "1:7", "/dev/full"
"""Not the other tests' substitute: a daemon holds every process that opens its device, on the whole host."""
SETTINGS = f'[ebpf]\nenabled = "on"\ndevices = "{DEVICE}"\n'


def steps(node: Node) -> list[str]:
    return sorted(str(one["step"]) for one in contained(node))


def pins(node: Node) -> Path:
    return BPFFS / pins_of(node.directory / "run")


@pytest.fixture
def node() -> Iterator[Node]:
    with workplace() as directory:
        made = Node(directory, settings=SETTINGS)
        try:
            made.start()
            until("the programs run", lambda: is_up(made), 60)
            yield made
        finally:
            made.stop()
        assert not pins(made).exists()


@pytest.fixture
def place() -> Iterator[dict[str, Container]]:
    with pods("unified", its=f"{POD}/c1") as made:
        yield made


@pytest.fixture
def opener(node: Node, place: dict[str, Container]) -> Iterator[Opener]:
    """In the container of a program that is on the driver without a grant, which is why the
    container is frozen and refused. The daemon is dead."""
    made = Opener("openat", place["its"].directory, DEVICE_PATH)
    try:
        place["its"].run(*(TENANT, *AT_REST), environment=node.on_the_driver())
        until("its container is held", place["its"].held, HELD_S)
        pin = pins(node) / f"deny-{place['its'].directory.stat().st_ino}"
        until("its opens are refused", pin.exists, HELD_S)
        until("the rows say so", lambda: all(row["done"] for row in rows(node, "holds")))
        assert steps(node) == ["deny_opens", "freeze"]
        node.kill_daemon()
        yield made
    finally:
        place["its"].let_go()
        made.close()


def opens(place: dict[str, Container], opener: Opener) -> int:
    """While there is no daemon that would hold it again. The errno."""
    place["its"].let_go()
    answer = opener.open()
    place["its"].hold()
    until("it is held again", place["its"].held)
    return answer


def may_open(place: dict[str, Container], opener: Opener) -> None:
    """The kernel lets go of a link in its own time, once its pin is gone."""
    until("it may open", lambda: opens(place, opener) == 0)


def test_the_next_daemon_takes_a_refusal_over_and_a_person_ends_it_without_one(
    node: Node, place: dict[str, Container], opener: Opener
) -> None:
    assert opens(place, opener) == EPERM
    # As if the taking over had been cut short in the middle.
    (pin,) = ebpf_pins.pinned(pins(node))
    pin.rename(pin.with_name(pin.name.replace("deny-", "old-")))
    node.start()
    until("the programs run", lambda: is_up(node), 60)
    looked(node)
    assert steps(node) == ["deny_opens", "freeze"]
    assert [one.name for one in ebpf_pins.pinned(pins(node))] == [pin.name]
    node.kill_daemon()
    assert opens(place, opener) == EPERM
    answer = node.cli("uncontain", "--all", "--config", config(node))
    assert "deny_opens" in answer.stdout
    may_open(place, opener)
    assert not pins(node).exists()
    assert undone(node, "deny_opens") == ["by hand, uid 0, while no daemon ran"]


def test_a_daemon_without_ebpf_ends_the_refusals_of_one_with_it(
    node: Node, place: dict[str, Container], opener: Opener
) -> None:
    set_policy(node, 'enabled = "on"', 'enabled = "off"')
    node.start()
    assert not ebpf_pins.pinned(pins(node))
    assert steps(node) == ["freeze"]
    assert undone(node, "deny_opens") == ["eBPF is switched off"]
    node.kill_daemon()
    may_open(place, opener)


def test_a_person_ends_it_while_the_daemon_runs(
    node: Node, place: dict[str, Container], opener: Opener
) -> None:
    node.start()
    until("the programs run", lambda: is_up(node), 60)
    looked(node)
    node.cli("uncontain", "--all")
    until("it is let go", lambda: not place["its"].held())
    looked(node)
    assert not place["its"].held()
    assert contained(node) == []
    node.stop_daemon()
    assert not pins(node).exists()
    may_open(place, opener)


def test_a_refusal_that_no_row_stands_for_is_ended(
    node: Node, place: dict[str, Container], opener: Opener
) -> None:
    for file in (node.directory / "state").glob("ledger.sqlite*"):
        file.unlink()
    node.start()
    assert not ebpf_pins.pinned(pins(node)) or steps(node)  # found anew by now
    assert "the ledger has no row for it" in undone(node, "deny_opens")


def test_doctor_names_what_a_dead_daemon_left(
    node: Node, place: dict[str, Container], opener: Opener
) -> None:
    (line,) = [
        line
        for line in node.cli("doctor", check=False).stdout.splitlines()
        if "ebpf refusals left" in line
    ]
    assert f"{pins(node)} (1 cgroup, of the daemon in {node.directory / 'run'})" in line
    node.start()  # its own is none
    assert all(one.directory != pins(node) for one in ebpf_pins.stale())
