"""The check of docstrings finds fragments and nothing else: packaging/development/docstrings.py."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from tests.kit.places import REPO

CHECK: dict[str, Any] = runpy.run_path(str(REPO / "packaging" / "development" / "docstrings.py"))

PLACES = {
    "module": '"""{}"""\n',
    "class": 'class A:\n    """{}"""\n',
    "function": 'def f():\n    """{}"""\n',
    "coroutine": 'async def f():\n    """{}"""\n',
    "method": 'class A:\n    def f(self):\n        """{}"""\n',
    "constant": 'A = 1\n"""{}"""\n',
    "field": 'class A:\n    a: int\n    """{}"""\n',
    "attribute": 'class A:\n    def __init__(self):\n        self.a = 1\n        """{}"""\n',
}
FRAGMENTS = (
    "Of a pod.",
    "By name.",
    "What it has.",
    "Who waits.",
    "Whom it preempts.",
    "Whose it is.",
    "Whether it runs.",
    "\n    Of a pod, on the next line.",
)
SENTENCES = (
    "The name of a pod.",
    "Offset of the region.",
    "Bytes of each GPU, by name.",
    "What follows a kill.",
    "What-if analysis of a workload.",
    "Whoever asks.",
    "",
)


def found(place: Path, text: str) -> list[str]:
    file = place / "module.py"
    file.write_text(text)
    return list(CHECK["fragments"](file))


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("text", FRAGMENTS)
def test_a_fragment_is_found_wherever_it_stands(tmp_path: Path, where: str, text: str) -> None:
    (line,) = found(tmp_path, PLACES[where].format(text))
    number = PLACES[where].partition('"""')[0].count("\n") + 1
    assert line == f"{tmp_path / 'module.py'}:{number}: {text.strip()}"


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("text", SENTENCES)
def test_a_sentence_or_a_noun_is_no_fragment(tmp_path: Path, where: str, text: str) -> None:
    assert found(tmp_path, PLACES[where].format(text)) == []


def test_a_string_that_is_no_docstring_is_not_checked(tmp_path: Path) -> None:
    assert found(tmp_path, 'A = "Of a pod."\nprint("By name.")\n"""What it has."""\n') == []


def test_the_exit_status_says_whether_there_is_a_fragment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "good.py").write_text('"""The name of a pod."""\n')
    assert CHECK["main"]([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
    bad = tmp_path / "deep" / "bad.py"
    bad.parent.mkdir()
    bad.write_text('"""Of a pod."""\n')
    assert CHECK["main"]([str(tmp_path)]) == 1
    assert CHECK["main"]([str(bad)]) == 1
    assert capsys.readouterr().out == f"{bad}:1: Of a pod.\n" * 2
