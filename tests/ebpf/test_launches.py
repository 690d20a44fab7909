"""Launches as the probe in our library tells them, against the interposer's own counters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest

from nodeagent.ports.telemetry import LaunchCounts
from tests.ebpf.live import LOADERS, OPTIONS, LiveWatch, live, needs_ebpf
from tests.kit.node import Node, Tenant, running, until

pytestmark = [needs_ebpf, pytest.mark.root]
MILLION = 1_000_000


@pytest.fixture(scope="module", params=LOADERS)
def watch(request: pytest.FixtureRequest) -> Iterator[LiveWatch]:
    # Windows of the audit would count launches, too.
    with live(replace(OPTIONS, audit_interval_s=0.0, loader=request.param)) as running_:
        yield running_


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node")) as node_:
        yield node_


def traced(
    node: Node, watch: LiveWatch, name: str, *arguments: str, cores: str = "100"
) -> tuple[Tenant, int]:
    """A tenant that launches nothing before its probe is attached."""
    node.begin.unlink(missing_ok=True)
    tenant = node.run_tenant(
        name,
        *(*arguments, "--begin", str(node.begin)),
        *("--warm", "0", "--hold", "4096", "--idle", "600", "--seconds", "600"),
        flags=("--gpumem", "1Gi", "--cores", cores),
    )
    until("the tenant is registered", lambda: (node.grant(name) or {}).get("processes"))
    pid = tenant.process.pid
    watch.call(watch.watch.trace(pid, True))
    node.begin.touch()
    return tenant, pid


def counts_of(watch: LiveWatch, pid: int) -> list[LaunchCounts]:
    return [one for one in watch.call(watch.watch.launches()).counts if one.pid == pid]


def total(counts: list[LaunchCounts]) -> int:
    return sum(one.launches + one.copies for one in counts)


def charged(node: Node, name: str) -> int:
    grant = node.grant(name)
    return sum(device["launches_total"] for device in grant["devices"]) if grant else 0


def test_a_million_launches_are_counted_to_the_launch(node: Node, watch: LiveWatch) -> None:
    tenant, pid = traced(node, watch, "million", "--kernel-ns", "1", "--launches", str(MILLION))
    try:
        until("the interposer has counted them", lambda: charged(node, "million") >= MILLION, 120)
        (counts,) = counts_of(watch, pid)
        assert charged(node, "million") == MILLION
        assert counts.launches == MILLION
        assert counts.copies == 0
        assert counts.cost_ns > 0
        assert sum(counts.gap_histogram) <= MILLION - 1
        assert sum(counts.gap_histogram) > MILLION * 0.99  # two threads may come in any order
        grant = node.grant("million")
        assert grant is not None
        assert f"{counts.grant_tag:016x}" == grant["grant"].replace("-", "")[:16]
        watch.call(watch.watch.trace(pid, False))
    finally:
        tenant.kill()
    ended = until("its end is known", lambda: [one for one in counts_of(watch, pid) if one.ended])
    assert [one.launches for one in ended] == [MILLION]


def test_waits_at_the_gate_are_in_the_histogram(node: Node, watch: LiveWatch) -> None:
    tenant, pid = traced(
        node, watch, "waiting", "--kernel-ns", "1000000", "--launches", "300", cores="20"
    )
    try:
        until("it has launched", lambda: charged(node, "waiting") >= 300, 60)
        (counts,) = counts_of(watch, pid)
        grant = node.grant("waiting")
        assert grant is not None
        throttled_ns = grant["devices"][0]["throttled_seconds_total"] * 1e9
        assert counts.launches == 300
        assert sum(counts.wait_histogram) > 50
        assert counts.waited_ns == pytest.approx(throttled_ns, rel=0.01)
        watch.call(watch.watch.trace(pid, False))
    finally:
        tenant.kill()


def test_probes_are_gone_when_nobody_looks(node: Node, watch: LiveWatch) -> None:
    tenant, pid = traced(node, watch, "unseen", "--kernel-ns", "1000000", "--launches", "100000")
    try:
        until("it is seen", lambda: total(counts_of(watch, pid)) > 10)
        watch.call(watch.watch.trace(pid, False))
        seen = total(counts_of(watch, pid))
        later = charged(node, "unseen") + 50
        until("it goes on", lambda: charged(node, "unseen") >= later)
        assert total(counts_of(watch, pid)) == seen
    finally:
        tenant.kill()


def test_only_processes_of_grants_can_be_traced(watch: LiveWatch) -> None:
    with pytest.raises(ProcessLookupError, match="does not use our library"):
        watch.call(watch.watch.trace(os.getpid(), True))
    with pytest.raises(ProcessLookupError, match="has ended"):
        watch.call(watch.watch.trace(4_000_000, True))


def test_a_second_tracer_does_not_end_the_first(node: Node, watch: LiveWatch) -> None:
    tenant, pid = traced(node, watch, "twice", "--kernel-ns", "1000000", "--launches", "100000")
    try:
        watch.call(watch.watch.trace(pid, True))
        watch.call(watch.watch.trace(pid, False))
        before = total(counts_of(watch, pid))
        until("it is still seen", lambda: total(counts_of(watch, pid)) > before + 10)
        watch.call(watch.watch.trace(pid, False))
    finally:
        tenant.kill()
