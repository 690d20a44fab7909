"""docs/reference/metrics-queue.md has every metric of the catalogue; settings tell every mistake."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from queuecontroller.server.config import ConfigError, Settings, parse
from queuecontroller.server.metrics import catalogue, kueue_catalogue
from queuecontroller.server.metrics.exposition import render
from queuecontroller.state.shell import Shell
from sluicecommon.hami import metrics as hami
from sluicecommon.metric import Metric
from tests.kit.places import REPO
from tests.queue.state.world import World


def fragments(world: World) -> dict[tuple[str, str], float]:
    text = render(Shell(world.book, world.store, _Clock(world)), "1.2.3").decode()
    (family,) = (
        one
        for one in text_string_to_metric_families(text)
        if one.name == catalogue.FRAGMENTATION.name
    )
    return {(s.labels["request"], s.labels["resource"]): s.value for s in family.samples}


def test_the_metrics_on_the_page() -> None:
    page = (REPO / "docs" / "reference" / "metrics-queue.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("- `")]
    for one in catalogue.CATALOGUE:
        name = one.name + ("_total" if one.kind is catalogue.Kind.COUNTER else "")
        (row,) = (row for row in rows if f"`{name}`" in row.partition(": ")[0])
        assert row.endswith(one.help) or one.help == "The same, by LocalQueue."
        common = {"replica_role"} if one.name.startswith(("kueue_", "multikueue_")) else set()
        shown = {*re.findall(r"`(\w+)`", row.partition(": ")[0]), *common}
        if "device" in shown:
            shown |= {"node", "device_index", "device_uuid", "device_type"}
        if one.help == "The same, by LocalQueue.":
            shown |= {"name", "namespace"}
        assert {*one.labels} <= shown
        assert ("*histogram:* " in row) is (one.kind is catalogue.Kind.HISTOGRAM)
    named = [name for row in rows for name in row.partition(": ")[0].split(" (")[0].split(", ")]
    assert len(named) == len(catalogue.CATALOGUE)
    making = [sys.executable, "packaging/generate/metrics.py", "metrics-queue.md"]
    assert subprocess.run(making, cwd=REPO, capture_output=True, text=True).stdout == page


def test_each_declared_metric_is_in_the_catalogue_and_is_written() -> None:
    """Declaring a metric lists it; what writes it is in the same folder."""
    folder = REPO / "queuecontroller" / "server" / "metrics"
    written = (folder / "exposition.py").read_text() + (folder / "kueue.py").read_text()
    names = {metric.name for metric in catalogue.CATALOGUE}
    for module, short in ((catalogue, "m"), (kueue_catalogue, "k"), (hami, "hami")):
        for name, one in vars(module).items():
            if isinstance(one, Metric) and (module is not hami or one in hami.SCHEDULER):
                assert one.name in names
                never = one.help.startswith("Declared only")
                assert never is (f"{short}.{name}" not in written), name


def test_every_metric_of_the_catalogue_is_exposed_and_no_other() -> None:
    world = World()
    world.connect()
    one = world.submit()
    world.confirm(one)
    assert fragments(world) == {
        # 80 GiB on one GPU, 72 on the other, of whose time only half is left: 40 of them.
        ("12.5%", "memory"): pytest.approx(1 - (80 + 40) / 152, abs=1e-6),
        ("25%", "memory"): pytest.approx(1 - (80 + 40) / 152, abs=1e-6),
        ("50%", "memory"): pytest.approx(1 - (80 + 40) / 152, abs=1e-6),
        ("100%", "memory"): pytest.approx(1 - 80 / 152, abs=1e-6),
        ("12.5%", "time"): 0.0,
        ("25%", "time"): 0.0,
        ("50%", "time"): 0.0,
        ("100%", "time"): pytest.approx(1 / 3, abs=1e-6),
    }
    for _ in range(4):
        world.submit("b")
    text = render(Shell(world.book, world.store, _Clock(world)), "1.2.3").decode()
    every = list(text_string_to_metric_families(text))
    families = {one.name: one for one in every}
    found = {(one.name, one.type): one for one in every}
    assert found.keys() == {(one.name, str(one.kind)) for one in catalogue.CATALOGUE}
    for declared in catalogue.CATALOGUE:
        for sample in found[declared.name, str(declared.kind)].samples:
            labels = set(sample.labels) - {"le"}
            assert labels == set(declared.labels), sample
    usage = {
        s.labels["cluster_queue"]: s.value
        for s in families["kueue_cluster_queue_resource_usage"].samples
    }
    assert usage == {"a": 1.0, "b": 3.0}
    pending = sum(s.value for s in families["kueue_pending_workloads"].samples)
    assert pending == 1
    kinds = {
        (s.labels["cluster_queue"], s.labels["status"]): s.value
        for s in families["kueue_pending_scheduling_hashes"].samples
    }
    assert sum(kinds.values()) == 1


class _Clock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ns(self) -> int:
        return self._world.now_ns


def test_every_mistake_is_told_at_once() -> None:
    document = {
        "server": {"listen": "0.0.0.0:1", "log_level": "loud", "max_message_kib": 1},
        "tls": {"key": "/k", "admins": "me"},
        "nodes": {"lease_s": 2, "report_s": 5, "lost_polic": "keep"},
        "engin": {},
    }
    with pytest.raises(ConfigError) as caught:
        parse(document)
    text = "\n".join(caught.value.problems)
    for named in (
        "server.listen: 0.0.0.0:1 would be TCP without TLS",
        "server.log_level: must be one of debug, info, warning, error, got 'loud'",
        "server.max_message_kib: must be between 64 and 65536, got 1",
        "tls.certificate: is missing",
        "tls.admins: requires tls.client_ca",
        "nodes.lost_polic: no such key (did you mean 'lost_policy'?)",
        "nodes.report_s: 5 is more than half of nodes.lease_s",
        "[engin]: no such section (did you mean 'engine'?)",
    ):
        assert named in text


def test_nothing_said_means_the_defaults() -> None:
    assert parse({}) == Settings()
