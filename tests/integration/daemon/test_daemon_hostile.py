"""A tenant that writes anything it likes into its half of the region: the daemon counts it and
goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.daemon.harness import (
    Daemon,
    daemon,
    neighbour_is_well,
    registered,
    until,
)

HUGE = (1 << 64) - 1


@pytest.fixture(scope="module")
def node() -> Iterator[Daemon]:
    # Told and not acted on: what is tried here would freeze the tenant, see test_watch.py.
    with daemon('[detection]\ngrants = "observe"\n') as made:
        yield made


def tampers(node: Daemon, name: str) -> int:
    (grant,) = [grant for grant in node.grants() if grant.name == name]
    return int(grant.tamper_events_total)


def view(node: Daemon, name: str) -> object:
    (grant,) = [grant for grant in node.grants() if grant.name == name]
    return grant.devices[0]


@pytest.mark.parametrize("size", [0, 1, 4096, 4097, 299007])
def test_truncating_the_usage_file_is_repaired_and_counted(node: Daemon, size: int) -> None:
    name = f"cut-{size}"
    tenant = registered(node, name)
    # Not through the tenant's mapping: touching it now would be its own SIGBUS.
    tenant.do("truncate", size)
    until("it is counted", lambda: tampers(node, name) >= 1)
    until("it has its size back", lambda: tenant.do("size") == 299008)
    neighbour_is_well(node)
    assert tenant.do("register")["error"] == 0
    tenant.kill()


def test_garbage_everywhere_is_counted_and_believed_nowhere(node: Daemon) -> None:
    tenant = registered(node, "garbage")
    tenant.do("set", 0, "launches", 5)
    until("the good value is seen", lambda: view(node, "garbage").launches_total == 5)
    tenant.do("garbage")
    until("it is counted", lambda: tampers(node, "garbage") >= 1)
    seen = view(node, "garbage")
    assert seen.launches_total == 5
    assert seen.memory_used_bytes == 0
    # 255 claims by pid 4,294,967,295 go too, with the next look at claims.
    until("the claims are zeroed", lambda: tenant.do("claimed", 255) == 0)
    neighbour_is_well(node)
    tenant.kill()


@pytest.mark.parametrize(
    "field",
    ["charged_bytes", "peak_bytes", "consumed_ns", "completed_ns", "throttled_ns", "denied"],
)
def test_an_impossible_value_is_counted_and_not_shown(node: Daemon, field: str) -> None:
    name = f"huge-{field}"
    tenant = registered(node, name)
    tenant.do("set", 0, "launches", 1)
    until("the slot is known", lambda: view(node, name).launches_total == 1)
    tenant.do("set", 0, field, HUGE)
    until("it is counted", lambda: tampers(node, name) >= 1)
    seen = view(node, name)
    assert seen.memory_used_bytes == 0
    assert seen.memory_peak_bytes == 0
    assert seen.busy_seconds_total < 60
    assert seen.denied_total == 0
    tenant.kill()


def test_a_counter_that_runs_backwards_is_counted(node: Daemon) -> None:
    tenant = registered(node, "back")
    tenant.do("set", 0, "launches", 1000)
    until("it is seen", lambda: view(node, "back").launches_total == 1000)
    tenant.do("set", 0, "launches", 1)
    until("it is counted, at each look", lambda: tampers(node, "back") >= 1)
    assert view(node, "back").launches_total == 1000
    tenant.kill()


def test_a_heartbeat_from_the_future_keeps_nobody_active(node: Daemon) -> None:
    tenant = registered(node, "future")
    tenant.do("set", 0, "consumed_ns", 10**12)
    tenant.do("beat", 0, HUGE)
    until("it turned idle", lambda: tenant.do("turn", 0)["active_grants"] == 0)
    tenant.kill()


def test_closing_the_socket_does_not_give_the_charge_back(node: Daemon) -> None:
    tenant = registered(node, "closer")
    tenant.do("set", 0, "charged_bytes", 1 << 29)
    until("it is seen", lambda: view(node, "closer").memory_used_bytes == 1 << 29)
    tenant.do("close")
    assert tenant.do("register")["slot"] == 1, "slot 0 is still owned"
    assert view(node, "closer").memory_used_bytes == 1 << 29
    tenant.kill()


def test_a_program_that_becomes_another_gives_its_slot_back(node: Daemon) -> None:
    tenant = registered(node, "exec")
    tenant.do("set", 0, "charged_bytes", 1 << 29)
    until("it is seen", lambda: view(node, "exec").memory_used_bytes == 1 << 29)
    assert tenant.do("exec") == "ready"
    until("its charge is gone", lambda: view(node, "exec").memory_used_bytes == 0)
    tenant.kill()


def test_a_claim_on_every_slot_locks_only_its_own_grant(node: Daemon) -> None:
    tenant = registered(node, "greedy")
    for slot in range(1, 256):
        tenant.do("claim", slot)
    until("all are adopted", lambda: _processes(node, "greedy") == 256)
    assert tenant.do("register")["error"] == 28
    neighbour_is_well(node)
    tenant.kill()


def _processes(node: Daemon, name: str) -> int:
    (grant,) = [grant for grant in node.grants() if grant.name == name]
    return int(grant.processes)
