"""The eBPF child inside a whole node: what it adds, and what happens to the rest when it dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.ebpf import host as ebpf_host
from tests.ebpf.daemon import is_up, metric
from tests.ebpf.live import LOADERS, STAND_IN, Opener, needs_ebpf
from tests.kit.node import Node, NodeError, running, until
from tests.kit.places import SLUICE

pytestmark = [needs_ebpf, pytest.mark.root]
SLACK = 2.5
"""The promise is for a machine with room."""
SETTINGS = f'[ebpf]\nenabled = "on"\ndevices = "{STAND_IN}"\naudit_interval_s = 2\n'


def child_of(node: Node) -> int:
    assert node.daemon is not None
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if b"nodeagent.adapters.ebpf.child" in words and int(parent) == node.daemon.pid:
                return int(name)
    raise NodeError("the daemon has no eBPF child")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node"), settings=SETTINGS) as node_:
        until("the programs run", lambda: is_up(node_), 60)
        yield node_


def test_an_opener_without_allocation_is_reported_within_a_second(node: Node) -> None:
    """First in this file: the same is not told twice within a while."""
    opener = Opener("io_uring")
    try:
        began_s = time.time()
        assert opener.open() == 0
        mine = f"pid {opener.pid} "

        def told() -> list[dict[str, Any]]:
            events = json.loads(node.cli("events", "--kind", "unallocated_opener", "--json").stdout)
            return [event for event in events if mine in event["text"]]

        (event,) = until("the event is there", told)
    finally:
        opener.close()
    assert event["at_unix_s"] - began_s <= 1.0 * SLACK


def test_doctor_says_that_it_runs_and_what_it_costs(node: Node) -> None:
    answer = node.cli("doctor", check=False).stdout
    if ebpf_host.missing("prebuilt"):
        assert "ebpf: runs, loaded by bcc because the prebuilt programs are not at" in answer
    else:
        assert "ebpf: runs, prebuilt, loaded by libbpf; a launch costs" in answer


@pytest.mark.parametrize("loader", [one for one in LOADERS if one.id == "bcc"])
def test_doctor_names_the_loader_of_the_settings(tmp_path: Path, loader: str) -> None:
    with running(tmp_path / "n", settings=f'{SETTINGS}loader = "{loader}"\n') as node:
        until("the programs run", lambda: is_up(node), 60)
        assert f"runs, loaded by {loader}; a launch" in node.cli("doctor", check=False).stdout


def test_what_the_kernel_tells_is_counted(node: Node) -> None:
    before = metric(node, "sluice_ebpf_events_total", '{kind="open"}')
    opener = Opener("openat")
    try:
        opener.open()
        until(
            "the open is counted",
            lambda: metric(node, "sluice_ebpf_events_total", '{kind="open"}') > before,
        )
    finally:
        opener.close()
    assert metric(node, "sluice_ebpf_probe_seconds", '{probe="driver"}') > 0
    assert metric(node, "sluice_ebpf_records_lost_total") == 0


def test_a_tenant_is_audited_and_its_libraries_are_known(node: Node) -> None:
    tenant = node.run_tenant(
        "audited", *("--kernel-ns", "50000", "--seconds", "600"), flags=("--gpumem", "1Gi")
    )
    try:
        driver = "sluice_audit_launches_total", '{seen_by="driver"}'
        before = metric(node, *driver)
        until("windows saw it", lambda: metric(node, *driver) > before + 200, 30)
        ours = metric(node, "sluice_audit_launches_total", '{seen_by="interposer"}')
        assert ours == pytest.approx(metric(node, *driver), rel=0.05)
        foreign = metric(node, "sluice_ebpf_events_total", '{kind="foreign_library"}')
        assert foreign == 0
    finally:
        tenant.kill()


def test_trace_shows_rates_cost_and_waits(node: Node) -> None:
    tenant = node.run_tenant(
        "traced",
        *("--kernel-ns", "1000000", "--seconds", "600"),
        flags=("--gpumem", "1Gi", "--cores", "30"),
    )
    try:
        until("it is registered", lambda: (node.grant("traced") or {}).get("processes"))
        pid = str(tenant.process.pid)
        said = node.cli("trace", pid, "--interval", "0.5", "-n", "3", "--json").stdout
        views = [json.loads(line) for line in said.splitlines()]
        assert len(views) == 3
        assert {view["name"] for view in views} == {"traced"}
        launches = [view["devices"][0]["launches"] for view in views]
        assert launches == sorted(launches)
        assert launches[2] > launches[0]
        assert sum(views[2]["devices"][0]["wait_histogram"]) > 0
        text = node.cli("trace", pid, "--interval", "0.3", "-n", "2").stdout
        assert f"pid {pid}, grant" in text
        assert "waits at the gate" in text
    finally:
        tenant.kill()


def test_trace_ends_with_its_process(node: Node) -> None:
    tenant = node.run_tenant(
        "brief", *("--kernel-ns", "1000000", "--seconds", "600"), flags=("--gpumem", "1Gi")
    )
    until("it is registered", lambda: (node.grant("brief") or {}).get("processes"))
    trace = subprocess.Popen(
        [SLUICE, "trace", str(tenant.process.pid), "--interval", "0.2"],
        env=node.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert trace.stdout is not None
    trace.stdout.readline()
    trace.stdout.readline()
    until("a line of figures", lambda: trace.stdout and trace.stdout.readline().strip())
    tenant.kill()
    rest, _ = trace.communicate(timeout=120)
    assert trace.returncode == 0, rest


def test_trace_of_a_stranger_is_refused_with_the_reason(node: Node) -> None:
    answer = node.cli("trace", str(os.getpid()), check=False)
    assert answer.returncode == 1
    assert "does not use our library" in answer.stderr


def test_a_killed_child_comes_back_and_nothing_else_notices(node: Node) -> None:
    tenant = node.run_tenant(
        "goes-on", *("--kernel-ns", "100000", "--seconds", "600"), flags=("--gpumem", "1Gi")
    )
    try:
        until("it is registered", lambda: (node.grant("goes-on") or {}).get("processes"))
        restarts = metric(node, "sluice_ebpf_restarts_total")
        first = child_of(node)
        os.kill(first, signal.SIGKILL)
        until("its end is seen", lambda: metric(node, "sluice_ebpf_restarts_total") > restarts)
        # While it is away: grants, readings, limits, metrics.
        assert node.grant("goes-on") is not None
        node.cli("resize", "goes-on", "--cores", "40")
        assert metric(node, "sluice_nvml_reading_age_seconds") < 10
        late = node.run_tenant(
            "late", *("--kernel-ns", "100000", "--launches", "100"), flags=("--gpumem", "1Gi")
        )
        assert late.result()["exit"] == 0
        until("it is back", lambda: is_up(node), 60)
        assert child_of(node) != first
        before = metric(node, "sluice_ebpf_events_total", '{kind="open"}')
        opener = Opener("openat")
        opener.open()
        opener.close()
        until(
            "it tells again",
            lambda: metric(node, "sluice_ebpf_events_total", '{kind="open"}') > before,
        )
        driver = "sluice_audit_launches_total", '{seen_by="driver"}'
        audited = metric(node, *driver)
        until("it audits again", lambda: metric(node, *driver) > audited, 30)
    finally:
        tenant.kill()


@pytest.mark.skipif(bool(ebpf_host.missing("bcc")), reason="needs bcc, to break it")
def test_a_child_that_cannot_load_says_why_and_the_node_serves(tmp_path: Path) -> None:
    settings = SETTINGS.replace('"on"', '"auto"\nloader = "bcc"')
    node = Node(tmp_path / "n", settings=settings)
    environment = node.on_the_driver()
    # bcc's own variable: headers that are none.
    broken = tmp_path / "headers"
    (broken / "include" / "linux").mkdir(parents=True)
    (broken / "include" / "linux" / "kconfig.h").write_text("#error these are no headers\n")
    node.on_the_driver = lambda: {**environment, "BCC_KERNEL_SOURCE": str(broken)}  # type: ignore[method-assign]
    try:
        node.start()
        until(
            "doctor tells of it",
            lambda: "eBPF does not work here" in node.cli("doctor", check=False).stdout,
            60,
        )
        assert metric(node, "sluice_ebpf_up") == 0
        tenant = node.run_tenant(
            "served", *("--kernel-ns", "1000", "--launches", "10"), flags=("--gpumem", "1Gi")
        )
        assert tenant.result()["exit"] == 0
    finally:
        node.stop()


def test_the_child_is_small(node: Node) -> None:
    status = Path(f"/proc/{child_of(node)}/status").read_text()
    resident = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert resident is not None
    assert int(resident[1]) <= 180 * 1024
