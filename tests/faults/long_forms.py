"""A plugin of pytest for `make test-faults`: where a test has a short form for every run and a long one for that, the long
one is enough."""

from __future__ import annotations

from typing import Any


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    long = {function_of(item) for item in items if is_long(item)}
    short = [item for item in items if function_of(item) in long and not is_long(item)]
    config.hook.pytest_deselected(items=short)
    items[:] = [item for item in items if item not in short]


def function_of(item: Any) -> str:
    name: str = item.nodeid.partition("[")[0]
    return name


def is_long(item: Any) -> bool:
    """True if the test's parameters carry the `faults` mark."""
    spec = getattr(item, "callspec", None)
    return spec is not None and any(mark.name == "faults" for mark in spec.marks)
