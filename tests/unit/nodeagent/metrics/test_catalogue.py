"""A metric is added in one place: its entry in the catalogue says what reads its figure."""

from __future__ import annotations

import ast
from pathlib import Path

from nodeagent.core.metrics import catalogue
from nodeagent.ports.gpus import GpuReading
from sluicecommon.metric import Metric, Source
from sluicecommon.prometheus import Exposition
from tests.kit.fakes.nvml import gpu_reading
from tests.kit.places import REPO

ENTRIES = {name: one for name, one in vars(catalogue).items() if isinstance(one, Metric)}
SOURCES = [one for one in vars(catalogue).values() if isinstance(one, Source)]


def named_in(folder: Path, but: Path) -> set[str]:
    """All names and attributes in the code below a folder."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path != but else ():
            if isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return found


def test_each_entry_has_its_reader_or_is_counted_by_an_owner() -> None:
    read = [metric.name for source in SOURCES for metric in source.metrics]
    assert len(read) == len(set(read))
    counted = {name for name, one in ENTRIES.items() if one.name not in read}
    assert 10 < len(counted) < len(ENTRIES) / 2
    assert counted <= named_in(REPO / "nodeagent", REPO / "nodeagent/core/metrics/catalogue.py")


def test_no_other_place_names_an_entry_that_has_a_reader() -> None:
    read = {metric.name for source in SOURCES for metric in source.metrics}
    text = (REPO / "nodeagent" / "core" / "metrics" / "own.py").read_text()
    assert [
        name for name, one in ENTRIES.items() if one.name in read and f"m.{name}," in text
    ] == []


def test_one_declaration_is_a_metric_that_is_served() -> None:
    cards = Source[GpuReading]("gpu", "index")
    fans = cards.gauge("fans", "Fans.", lambda gpu: {"left": gpu.index, "right": None}, "side")
    cards.counter("spins", "Spins.", lambda gpu: gpu.temperature_celsius)
    page = Exposition(cards.metrics)
    cards.fill(page, gpu_reading(3), ("GPU-3", "3"))
    assert fans.labels == ("gpu", "index", "side")
    lines = [line for line in page.text().decode().splitlines() if not line.startswith("#")]
    assert lines[0] == 'fans{gpu="GPU-3",index="3",side="left"} 3'
    assert lines[1].startswith('spins_total{gpu="GPU-3",index="3"} ')
    assert len(lines) == 2
