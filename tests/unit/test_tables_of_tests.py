"""Tables in docs that name a test in each row or cell: no cell is empty, and each test exists."""

from __future__ import annotations

import functools
import re

import pytest

from nodeagent.core.dra.configuration import FIELDS
from sluicecommon.pod_annotations import PLACEMENT
from tests.kit.places import REPO

QUOTA = (REPO / "docs" / "queue" / "quota.md").read_text()
SECURITY = (REPO / "docs" / "security.md").read_text()
UNINVOLVED = "not involved"


def rows(text: str) -> list[list[str]]:
    """Cells of the tables' rows, without heads and lines."""
    found = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.startswith("|") and not line.startswith("|---"):
            if number + 1 < len(lines) and lines[number + 1].startswith("|---"):
                continue
            found.append([one.strip() for one in line.strip("|").split("|")])
    return found


@functools.cache
def names() -> frozenset[str]:
    """Functions of tests, and their modules."""
    found: set[str] = set()
    for path in (REPO / "tests").rglob("test_*.py"):
        found.add(path.stem)
        found |= set(re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.M))
    return frozenset(found)


def unknown(text: str) -> list[str]:
    return [one for one in re.findall(r"`(test_\w+)`", text) if one not in names()]


@pytest.mark.parametrize("row", rows(QUOTA), ids=lambda row: row[0])
def test_quota_comes_back_in_each_state_and_a_test_says_so(row: list[str]) -> None:
    state, *cells = row
    assert all(cells), state
    assert [one for one in cells if one != UNINVOLVED and "`test_" not in one] == []
    assert unknown(" ".join(cells)) == []


def test_each_listening_port_has_its_limit_authentication_and_test() -> None:
    table = SECURITY.partition("### Listening ports")[2].partition("\n\n")[2].partition("\n\n")[0]
    listed = rows(table)
    assert len(listed) >= 8
    for row in listed:
        assert len(row) == 5, row
        assert all(row), row
        assert "`test_" in row[-1], row
    assert unknown(table) == []


def test_each_field_of_a_user_that_reaches_a_node_has_its_bound_and_test() -> None:
    table = SECURITY.partition("## What a pod's author can set")[2].partition("\n## ")[0]
    for row in rows(table):
        assert len(row) == 3, row
        assert all(row), row
        assert "`test_" in row[-1], row
    assert unknown(table) == []
    pods = (REPO / "docs" / "pods.md").read_text()
    resources = re.findall(
        r"^\| `(nvidia\.com/[\w.-]+)` \|", pods.partition("\n## Annotations")[0], re.M
    )
    read_by_node = re.findall(r"^\| (?:label )?`([\w./-]+)` \|.*\bnode\b[^|]*\|$", pods, re.M)
    assert len(resources) >= 6
    assert "sluice.dev/share-policy" in read_by_node
    fields = [*resources, *read_by_node, PLACEMENT, *set(FIELDS) - {"apiVersion", "kind"}]
    assert [one for one in fields if f"`{one}`" not in table] == []


def test_each_setting_of_an_address_is_a_listed_port() -> None:
    """A new listener is in the table before it is in a release."""
    table = SECURITY.partition("### Listening ports")[2].partition("\n\n- ")[0]
    reference = (REPO / "docs" / "reference" / "configuration.md").read_text()
    section = ""
    missing = []
    for line in reference.splitlines():
        if found := re.match(r"#+ .*\[([\w.]+)\]", line):
            section = found[1]
        if found := re.match(r"- `(\w*(?:listen|probes|socket))`", line):
            setting = f"{section}.{found[1]}"
            if setting not in table:
                missing.append(setting)
    assert section
    assert missing == []
