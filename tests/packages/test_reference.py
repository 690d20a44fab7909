"""Generated documents agree with the code, and shipped files are accepted by it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from nodeagent.settings import daemon as node_config
from queuecontroller.server import config as queue_config
from tests.golden import check
from tests.kit.places import REPO


def made(page: str, script: str = "reference.py") -> str:
    return subprocess.run(
        [sys.executable, REPO / "packaging" / "generate" / script, *([page] if page else [])],
        check=True,
        capture_output=True,
        text=True,
        env={"SOURCE_DATE_EPOCH": "1700000000", "PYTHONDONTWRITEBYTECODE": "1"},
    ).stdout


def test_the_page_of_settings_says_what_the_code_does() -> None:
    check(REPO / "docs" / "reference" / "configuration.md", made("configuration.md"))


def test_the_page_of_commands_says_what_the_parsers_take() -> None:
    check(REPO / "docs" / "reference" / "commands.md", made("", "commands.py"))


@pytest.mark.parametrize("page", ["metrics-queue.md", "metrics-node.md"])
def test_the_pages_of_metrics_say_what_the_catalogues_have(page: str) -> None:
    check(REPO / "docs" / "reference" / page, made(page, "metrics.py"))


@pytest.mark.parametrize(
    ("page", "parse", "defaults", "known"),
    [
        ("sluice.toml", node_config.parse, node_config.Settings(), node_config.SECTIONS),
        ("queue.toml", queue_config.parse, queue_config.Settings(), queue_config.SECTIONS),
    ],
    ids=["node", "queue"],
)
def test_the_settings_that_are_shipped_are_the_defaults(
    page: str,
    parse: Callable[[Mapping[str, object]], object],
    defaults: object,
    known: Mapping[str, Any],
) -> None:
    text = made(page)
    assert parse(tomllib.loads(text)) == defaults
    for section in known:
        assert f"[{section}]" in text


@pytest.mark.parametrize("page", ["sluice.toml", "queue.toml"])
def test_every_shipped_setting_may_be_uncommented(page: str) -> None:
    lines = [
        line[1:] if line.startswith("#") and not line.startswith("# ") else line
        for line in made(page).splitlines()
    ]
    document = tomllib.loads("\n".join(lines))
    parse = node_config.parse if page == "sluice.toml" else queue_config.parse
    settings: Any = parse(document)
    for section, values in document.items():
        for key, value in values.items():
            read = getattr(settings, section)
            found = read.values[key] if section == "kubelet" else getattr(read, key)
            assert (list(found) if isinstance(found, tuple) else found) == value


@pytest.mark.parametrize("page", ["sluice.1", "sluice-queue.1", "kubectl-sluice.1"])
def test_manual_pages_name_every_command_and_are_the_same_each_time(page: str) -> None:
    text = made(page)
    assert text == made(page)
    assert ".SH COMMANDS" in text
    assert text.count(".TP\n.B ") >= 8


@pytest.mark.parametrize("script", ["reference.py", "metrics.py"])
def test_a_wrong_page_is_refused(script: str) -> None:
    answer = subprocess.run(
        [sys.executable, REPO / "packaging" / "generate" / script, "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 2
    assert "usage" in answer.stderr
