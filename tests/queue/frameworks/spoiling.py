"""Documents with a wrong value in any place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

WRONG = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1 << 40,
        1.5,
        "",
        "text",
        [],
        [None],
        ["text"],
        [[]],
        {},
        {"a": None},
        {"": {}},
    ]
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    if isinstance(value, dict):
        found += [path for key in value for path in paths(value[key], (*at, key))]
    if isinstance(value, list):
        found += [path for i, one in enumerate(value) for path in paths(one, (*at, i))]
    return found


def spoilt(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    if isinstance(value, list):
        return [
            spoilt(one, path[1:], wrong) if i == path[0] else one for i, one in enumerate(value)
        ]
    return {
        key: spoilt(one, path[1:], wrong) if key == path[0] else one for key, one in value.items()
    }
