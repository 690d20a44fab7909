"""The metrics: frozen names, the rules of `promtool check metrics`, and docs/metrics.md true to the catalogue."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from nodeagent.adapters.metrics_http import render
from nodeagent.metrics import CATALOGUE, Kind, Metric
from tests.golden import check
from tests.places import REPO
from tests.unit.nodeagent.views import grant, node

GOLDEN = REPO / "tests" / "golden" / "metrics-v1.txt"
BASE_UNITS = ("seconds", "bytes", "ratio", "celsius", "watts", "info")
OTHER_UNITS = re.compile(
    r"_(ms|milliseconds|us|minutes|hours|days|kb|mb|gb|mib|gib|kilobytes|megabytes|percent|mw|milliwatts)\b"
)


def exposition() -> str:
    return render(node).decode()


def test_names_labels_and_help_are_frozen() -> None:
    check(GOLDEN, exposition())


def test_every_metric_of_the_catalogue_has_a_sample() -> None:
    families = {family.name: family for family in text_string_to_metric_families(exposition())}
    assert set(families) == {metric.name for metric in CATALOGUE}
    for metric in CATALOGUE:
        family = families[metric.name]
        assert family.samples, metric.name
        assert family.type == metric.kind.value
        assert set(family.samples[0].labels) == set(metric.labels)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_follow_the_rules_of_promtool(metric: Metric) -> None:
    assert re.fullmatch(r"sluice_[a-z][a-z0-9_]*", metric.name)
    assert metric.help
    assert metric.help.endswith(".")
    assert not metric.name.endswith("_total"), "the exposition adds it to counters"
    assert not OTHER_UNITS.search(metric.name), "base units only"
    assert "counter" not in metric.name
    assert "gauge" not in metric.name
    assert all(
        re.fullmatch(r"[a-z][a-z0-9_]*", label) and label not in ("le", "quantile")
        for label in metric.labels
    )
    if metric.kind is Kind.GAUGE and metric.name.endswith("_info"):
        assert "always 1" in metric.help


def test_promtool_itself_finds_nothing() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    answer = subprocess.run(
        [promtool, "check", "metrics"],
        input=exposition(),
        text=True,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


def test_a_name_from_a_user_cannot_break_the_exposition() -> None:
    evil = 'x"} 1\nsluice_build_info{version="forged'
    text = render(lambda: node(grant(evil))).decode()
    assert "forged" not in [
        sample.labels.get("version")
        for f in text_string_to_metric_families(text)
        for sample in f.samples
    ]
    assert text.count("sluice_build_info{") == 1


def documented() -> str:
    lines = [
        "# Metrics",
        "",
        "`GET /metrics` on `127.0.0.1:9464` (`metrics.listen` in the [configuration](configuration.md)); `/healthz` answers 200 while all",
        "loops of the daemon come round. Figures are the daemon's own from memory: a scrape never touches NVML or a tenant. Ratios are 0",
        "to 1, times are seconds, and labels never come from memory that tenants write.",
        "",
        "| Metric | Type | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for metric in CATALOGUE:
        name = metric.name + ("_total" if metric.kind is Kind.COUNTER else "")
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join([*lines, ""])


def test_the_page_says_what_the_catalogue_does() -> None:
    check(REPO / "docs" / "metrics.md", documented())
