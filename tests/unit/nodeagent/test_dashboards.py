"""What we give to Grafana and Prometheus asks only for what the daemon serves, and its alerts fire
when they should."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.metrics import CATALOGUE, Kind
from tests.places import REPO
from tests.unit.nodeagent.test_metrics import scrape

DASHBOARD = REPO / "packaging" / "grafana" / "sluice-node.json"
PROMETHEUS = REPO / "packaging" / "prometheus"
TARGET_LABELS = {"instance", "job", "le"}
"""Those that a scrape adds, and the histograms' own."""


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((PROMETHEUS / "sluice-alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> list[tuple[str, str]]:
    """(where, PromQL)."""
    found = [(panel["title"], t["expr"]) for panel in panels() for t in panel["targets"]]
    found += [(v["name"], v["definition"]) for v in dashboard()["templating"]["list"] if "definition" in v]  # fmt: skip
    return found + [(rule["alert"], rule["expr"]) for rule in rules()]


def served() -> dict[str, set[str]]:
    """Labels by the name of every sample that can be."""
    names = {}
    for metric in CATALOGUE:
        suffixes = {
            Kind.GAUGE: ("",),
            Kind.COUNTER: ("_total",),
            Kind.HISTOGRAM: ("_bucket", "_sum", "_count"),
        }[metric.kind]
        for suffix in suffixes:
            names[metric.name + suffix] = set(metric.labels)
    return names


@pytest.mark.parametrize(("where", "expression"), expressions(), ids=lambda value: value[:60])
def test_every_query_asks_for_series_and_labels_that_are_served(
    where: str, expression: str
) -> None:
    names = served()
    asked = re.findall(r"(sluice_[a-z0-9_]+)(?:\{([^}]*)\})?", expression)
    assert asked, where
    known: set[str] = set(TARGET_LABELS)
    for name, matchers in asked:
        assert name in names, f"{where}: {name} is not served"
        known |= names[name]
        for label in re.findall(r"([A-Za-z_]+)\s*(?:=~|!~|!=|=)", matchers):
            assert label in names[name] | TARGET_LABELS, f"{where}: {name} has no label {label}"
    for group in re.findall(r"(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in group.split(",")} <= known, f"{where}: {group}"


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
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
    assert panel["datasource"]["uid"] == "${datasource}"
    assert panel["description"]


def test_panels_do_not_lie_over_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken[x, y]}"
                taken[x, y] = panel["title"]
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_every_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"]["summary"]
    assert len(rule["annotations"]["description"]) > 20


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
        [promtool, *words], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
