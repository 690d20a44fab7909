"""`sluice-queue top`: lines from what the service lists."""

from __future__ import annotations

from collections import deque
from typing import Any

from queuecontroller.cli.commands.top import HISTORY, lines_of, sparkline, take

GIB = 1 << 30


def node(name: str, state: str, *loads: float | None) -> dict[str, Any]:
    gpus = [{"memoryBytes": 80 * GIB, "givenMemoryBytes": 20 * GIB, "givenSharePpm": 500_000, "utilizationRatio": load} for load in loads]  # fmt: skip
    return {"metadata": {"name": name}, "status": {"state": state, "gpus": gpus}}


QUEUES = [
    {"metadata": {"name": "few"}, "spec": {"cohort": "all"}, "status": {"pendingWorkloads": 1, "active": True}},
    {"metadata": {"name": "many\x1b[2J"}, "spec": {}, "status": {"pendingWorkloads": 70, "active": False, "message": "stopped"}},
]  # fmt: skip


def test_the_history_is_the_mean_load_and_bounded() -> None:
    loads: dict[str, deque[float | None]] = {}
    for _ in range(HISTORY + 5):
        take(loads, [node("a", "Ready", 0.5, 1.0, None), node("b", "Away", None)])
    assert set(loads["a"]) == {0.75}
    assert len(loads["a"]) == HISTORY
    assert set(loads["b"]) == {None}


def test_lines_tell_nodes_and_the_longest_queue_first() -> None:
    nodes = [node("a", "Ready", 0.5, 1.0), node("b", "Lost")]
    loads: dict[str, deque[float | None]] = {}
    take(loads, nodes)
    lines = lines_of(nodes, QUEUES, loads, False, "12:00:00")
    text = "\n".join(lines)
    assert "1 of 2 nodes ready, 40 of 160 GiB granted" in text
    (row,) = [line for line in lines if line.startswith("a ")]
    assert row.split() == ["a", "Ready", "2", "25%", "50%", "75%", sparkline([0.75])]
    assert text.index("many") < text.index("few")
    assert "\x1b" not in text
    assert "stopped" in text


def test_color_is_for_states_alone_and_only_where_wanted() -> None:
    nodes = [node("Lost", "Lost", 0.1)]
    lines = lines_of(nodes, [], {}, True, "")
    (row,) = [line for line in lines if line.startswith("Lost")]
    assert row.count("\x1b[31mLost\x1b[0m") == 1


def test_a_line_shows_what_was_and_blanks_where_nothing_was_known() -> None:
    assert sparkline([0.0, 0.5, 1.0, None, -1.0, 9.0]) == "▁▅█ ▁█"
