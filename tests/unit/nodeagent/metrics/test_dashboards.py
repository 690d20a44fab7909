"""Dashboards and alerts query only series that the daemon and the queue serve, the alerts fire when
they should, and each is explained."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.core.metrics import catalogue as node_metrics
from queuecontroller.server.metrics import catalogue as queue_metrics
from tests.kit.places import REPO
from tests.unit.nodeagent.metrics.scraping import scrape

GRAFANA = REPO / "packaging" / "grafana"
PROMETHEUS = REPO / "packaging" / "prometheus"
TARGET_LABELS = {"instance", "job", "le"}
"""Labels that a scrape adds, and the histograms' own."""


DASHBOARDS = ("sluice-node", "sluice-queue")


def dashboard(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GRAFANA / f"{name}.json").read_text())
    return loaded


def panels(name: str) -> list[dict[str, Any]]:
    return [panel for panel in dashboard(name)["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "sluice-alerts.yaml").read_text())["groups"]
    assert [group["name"] for group in groups] == ["sluice-node", "sluice-queue"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[tuple[str, str]]:
    """(where, PromQL)."""
    found = []
    for name in DASHBOARDS:
        found += [(panel["title"], t["expr"]) for panel in panels(name) for t in panel["targets"]]
        variables = dashboard(name)["templating"]["list"]
        found += [(v["name"], v["definition"]) for v in variables if "definition" in v]
    return found + [(rule["alert"], rule["expr"]) for rule in rules()]


def served() -> dict[str, set[str]]:
    """Labels by the name of every sample that can be."""
    names = {}
    suffixes = {
        "gauge": ("",),
        "counter": ("_total",),
        "histogram": ("_bucket", "_sum", "_count"),
    }
    for metric in (*node_metrics.CATALOGUE, *queue_metrics.CATALOGUE):
        for suffix in suffixes[metric.kind]:
            names[metric.name + suffix] = set(metric.labels)
    return names


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=lambda value: value[:60])
def test_every_query_asks_for_series_and_labels_that_are_served(
    where: str, expression: str
) -> None:
    names = served()
    asked = re.findall(r"((?:sluice|kueue)_[a-z0-9_]+)(?:\{([^}]*)\})?", expression)
    assert asked, where
    known: set[str] = set(TARGET_LABELS)
    for name, matchers in asked:
        assert name in names, f"{where}: {name} is not served"
        known |= names[name]
        for label in re.findall(r"([A-Za-z_]+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in names[name] | TARGET_LABELS, f"{where}: {name} has no label {label}"
    for group in re.findall(r"(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} - {""} <= known, f"{where}: {group}"


@pytest.mark.parametrize("panel", panels("sluice-node"), ids=lambda panel: panel["title"])
def test_every_panel_has_data_on_a_captured_node(panel: dict[str, Any]) -> None:
    with_data = {
        sample.name
        for family in text_string_to_metric_families(scrape())
        for sample in family.samples
    }
    for target in panel["targets"]:
        for name in re.findall(r"sluice_[a-z0-9_]+", target["expr"]):
            assert name in with_data
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert label in target["expr"] or label in {"instance", "index", "name", "reason"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_are_explained_and_do_not_lie_over_each_other(name: str) -> None:
    for panel in panels(name):
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["description"]
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard(name)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken[x, y]}"
                taken[x, y] = panel["title"]
    ids = [panel["id"] for panel in dashboard(name)["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 20


def test_every_alert_is_explained_in_operations_and_no_other() -> None:
    text = (REPO / "docs" / "operations.md").read_text()
    explained = re.findall(r"^\| `(Sluice\w+)` \|", text, re.MULTILINE)
    assert sorted(explained) == sorted(rule["alert"] for rule in rules())


def test_the_dashboard_of_the_queue_is_what_its_table_says() -> None:
    made = subprocess.run(
        [sys.executable, REPO / "packaging" / "generate" / "dashboard.py"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert (GRAFANA / "sluice-queue.json").read_text() == made, "make chart"


def test_every_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load((PROMETHEUS / "sluice-alerts.test.yaml").read_text())["tests"]
    fired = {
        one["alertname"] for case in cases for one in case["alert_rule_test"] if one["exp_alerts"]
    }
    assert fired == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize(
    "words",
    [("check", "rules", "sluice-alerts.yaml"), ("test", "rules", "sluice-alerts.test.yaml")],
)
def test_promtool_agrees(words: tuple[str, ...]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt install prometheus): alerts not tried")
    answer = subprocess.run(
        [promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=240, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
