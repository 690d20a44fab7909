"""Output of `sluice ps` and `sluice top` fits into 80 columns, whatever the names are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nodeagent.cli.tables import (
    History,
    TopView,
    event_line,
    ps_lines,
    sparkline,
    top_lines,
    wide_lines,
)
from nodeagent.ports.views import NodeEvent, NodeView, ProcessView
from tests.unit.nodeagent.metrics.views import device, grant, node


@pytest.mark.parametrize(
    "name",
    ["train", "a-name-that-is-far-too-long-for-any-column-of-a-terminal", "naïve Ünïcode", ""],
)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    for lines in (ps_lines([grant(name)]), top_lines(node(grant(name)), clock="12:00:00")):
        assert lines
        assert max(len(line) for line in lines) <= 80


def test_names_of_pods_have_the_room_that_no_command_needs() -> None:
    names = ("default/train", "team-a/train-qtms8")
    pods = [replace(grant(one), command="") for one in names]
    head, *rows = ps_lines(pods)
    for name, row in zip(names, rows, strict=True):
        assert row.split()[1] == name
        assert row[head.index("USER") - 1] == " "
        assert row[head.index("USER")] != " "
    assert max(len(line) for line in [head, *rows]) <= 80
    assert head.endswith("STATE"), "no column that is empty, or cut to a sign"
    long = "default/a-train-of-thought"
    assert long in ps_lines([grant(long)], width=100)[1]
    assert "default/a-t…" in ps_lines([grant(long)], width=80)[1], "its command needs the room"


def test_wide_lines_cut_nothing_and_are_aligned() -> None:
    names = ("default/h06-a-pod-with-a-long-name/main", "default/h06-another/main")
    made = [replace(grant(one, "a" * 36), workload="team/job-h06", priority=1) for one in names]
    head, *rows = wide_lines(made)
    assert len(rows) == sum(len(one.devices) for one in made)
    for one, row in zip(made, rows, strict=True):
        device = one.devices[0]
        for text in (one.name, one.grant, device.gpu, "team/job-h06", "28/30", "3Gi/8Gi"):
            assert text in row
        for column in ("NAME", "GPU", "UUID", "WORKLOAD", "COMMAND"):
            assert row[head.index(column) - 1] == " ", column
            assert row[head.index(column)] != " ", column
    assert wide_lines([]) == ps_lines([])


def test_the_learned_context_switch_of_each_gpu_is_shown_once_it_is_known() -> None:
    known = node(grant())
    view = replace(known, gpus=tuple(replace(gpu, context_switch_s=None) for gpu in known.gpus))
    assert "switch" not in "\n".join([*ps_lines(view.grants, gpus=view.gpus), *top_lines(view)])
    head, row = wide_lines(view.grants, view.gpus)
    assert row[head.index("SWITCH") :].split()[0] == "-"
    gpus = (replace(view.gpus[0], context_switch_s=208.4e-6), *view.gpus[1:])
    assert ps_lines(view.grants, gpus=gpus)[-1] == "context switch as measured: GPU 0 208us"
    assert "    context switch 208us" in top_lines(replace(view, gpus=gpus))
    head, row = wide_lines([replace(view.grants[0], gang=True)], gpus)
    assert row[head.index("SWITCH") :].split()[:2] == ["208us", f"{device().turn},gang"]


def test_the_figures_that_matter_are_there() -> None:
    text = "\n".join(top_lines(node(grant())))
    for figure in ("NVIDIA H100", "3Gi/8Gi", "28/30", "train", "active", "healthy", "1/10"):
        assert figure in text, figure


def test_an_empty_node_says_how_to_start() -> None:
    text = "\n".join(top_lines(replace(node(), grants=())))
    assert "sluice run" in text


def busy_node() -> NodeView:
    big = replace(grant("big", "b" * 36), devices=(replace(device(), memory_used_bytes=7 << 30),))
    small = replace(grant("small", "a" * 36), state="paused", workload="ml/nightly")
    processes = (
        ProcessView(11, big.devices[0].gpu, 0, 1 << 30, 0.2, big.grant),
        ProcessView(12, big.devices[0].gpu, 0, 6 << 30, None, None),
    )
    return replace(node(small, big), processes=processes)


def test_grants_are_sorted_by_what_is_asked() -> None:
    by_memory = "\n".join(top_lines(busy_node(), shown=TopView("memory")))
    by_name = "\n".join(top_lines(busy_node(), shown=TopView("name")))
    assert by_memory.index("big") < by_memory.index("small")
    assert by_name.index("big") < by_name.index("small")
    as_they_came = "\n".join(top_lines(busy_node()))
    assert as_they_came.index("small") < as_they_came.index("big")


@pytest.mark.parametrize(
    ("only", "seen"),
    [("nightly", ["small"]), ("PAUSED", ["small"]), ("gpu0", ["big", "small"]), ("zebra", [])],
)
def test_a_filter_hides_the_others_and_says_how_many(only: str, seen: list[str]) -> None:
    lines = top_lines(busy_node(), shown=TopView(only=only))
    text = "\n".join(lines[1:])
    assert [name for name in ("big", "small") if name in text] == seen
    assert (f"({2 - len(seen)} hidden)" in lines[0]) is (len(seen) < 2)
    if not seen:
        assert "no grant has 'zebra' in it" in text


def test_processes_are_shown_with_their_grant_or_that_they_have_none() -> None:
    shown = TopView("memory", processes=True)
    lines = top_lines(busy_node(), shown=shown, command_of=lambda pid: f"python\x1b[2J job{pid}")
    rows = [line for line in lines if "job1" in line]
    assert [row.split()[0] for row in rows] == ["12", "11"]
    assert "! none" in rows[0]
    assert " big " in rows[1]
    assert "\x1b" not in "".join(rows)


def test_the_load_of_the_last_rounds_is_drawn() -> None:
    assert sparkline([0.0, 0.5, 1.0, None, 2.0]) == "▁▅█ █"
    history = History()
    view = node(grant())
    history.take(view)
    assert not any(line.startswith("    load") for line in top_lines(view, history=history))
    for _ in range(100):
        history.take(view)
    drawn = [line for line in top_lines(view, history=history) if line.startswith("    load")]
    assert len(drawn) == len(view.gpus)
    assert max(len(line) for line in drawn) <= 80


def test_an_event_is_one_line_whatever_a_program_is_called() -> None:
    event = NodeEvent(
        1, 1.7e9, "act", "critical", "freeze: pid 7 (/x\n\x1b[2J)", evidence='{"a": 1}'
    )
    line = event_line(event)
    assert "\n" not in line
    assert "\x1b" not in line
    assert "CRITICAL act: freeze: pid 7" in line
    assert line.endswith('{"a": 1}')
