"""YAML of others: read, or refused with the reason, and never the end of the process."""

from __future__ import annotations

import pytest

from sluicecommon import yaml_text

LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 64))]
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("a: 1\n---\n[b]\n", [{"a": 1}, ["b"]]),
        ('{"a": [1, null]}', [{"a": [1, None]}]),
        ("a: &x {b: 1}\nc: *x\n", [{"a": {"b": 1}, "c": {"b": 1}}]),
        ("[" * yaml_text.DEEPEST + "]" * yaml_text.DEEPEST, None),
    ],
)
def test_what_is_yaml_is_read(text: str, found: list[object] | None) -> None:
    read = yaml_text.read_all(text)
    assert found is None or read == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("[" * 300_000 + "]" * 300_000, "nested deeper than 64", id="without end"),
        pytest.param("a: " + "{b: " * 100 + "1" + "}" * 100, "nested deeper", id="mappings"),
        pytest.param(LAUGHS, "more than 1000000 values", id="aliases of aliases"),
        pytest.param("a: &a [*a]", "stands within itself", id="an alias within itself"),
        pytest.param("a: *b", "undefined alias", id="an alias of nothing"),
        pytest.param("a: [", "not YAML or JSON", id="cut short"),
        pytest.param("a: !!int x", "does not fit its tag", id="a number that is none"),
        pytest.param("a: 2026-99-01", "does not fit its tag", id="a month 99"),
        pytest.param("a: !!python/object:os.system x", "could not determine", id="a program"),
        pytest.param("a\0b", "not YAML or JSON", id="a character that is none"),
    ],
)
def test_what_is_none_is_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        yaml_text.read_all(text)


def test_one_document_is_asked_for() -> None:
    assert yaml_text.read("") is None
    assert yaml_text.read("a: 1") == {"a": 1}
    with pytest.raises(ValueError, match="more than one document"):
        yaml_text.read("a\n---\nb\n")
