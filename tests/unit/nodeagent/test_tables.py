"""What `sluice ps` and `sluice top` print fits into 80 columns, whatever the names are."""

from __future__ import annotations

import pytest

from nodeagent.cli.tables import ps_lines, top_lines
from tests.unit.nodeagent.views import grant, node


@pytest.mark.parametrize(
    "name",
    ["train", "a-name-that-is-far-too-long-for-any-column-of-a-terminal", "naïve Ünïcode", ""],
)
def test_no_line_is_wider_than_the_terminal(name: str) -> None:
    for lines in (ps_lines([grant(name)]), top_lines(node(grant(name)), clock="12:00:00")):
        assert lines
        assert max(len(line) for line in lines) <= 80


def test_the_figures_that_matter_are_there() -> None:
    text = "\n".join(top_lines(node(grant())))
    for figure in ("NVIDIA H100", "3Gi/8Gi", "28/30", "train", "active", "healthy", "1/10"):
        assert figure in text, figure


def test_an_empty_node_says_how_to_start() -> None:
    from dataclasses import replace

    text = "\n".join(top_lines(replace(node(), grants=())))
    assert "sluice run" in text
