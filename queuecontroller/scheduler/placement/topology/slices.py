"""Conversion of topology assignments between v1beta1's list of domains and v1beta2's slices, which
state common values once.

A slice holds neighbours of the list, so the order is preserved. One slice is made: levels at which
all are equal become `universal`, the others a prefix, a suffix and the part between.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final

MAX_DOMAINS: Final = 100_000
"""The schema's limit, so that a few lines of slices cannot expand to more."""


def slices_of(domains: list[Any]) -> list[dict[str, Any]]:
    """Slices of domains; incomplete domains (no count, another number of values) are left out."""
    whole = [one for one in domains if _is_domain(one)]
    whole = [one for one in whole if len(one["values"]) == len(whole[0]["values"])]
    if not whole:
        return []
    counts = [one["count"] for one in whole]
    columns = zip(*(one["values"] for one in whole), strict=True)
    return [
        {
            "domainCount": len(whole),
            "podCounts": _counts(counts),
            "valuesPerLevel": [_level(list(column)) for column in columns],
        }
    ]


def domains_of(slices: list[Any]) -> list[dict[str, Any]]:
    """Domains of slices; slices that are inconsistent or exceed MAX_DOMAINS are left out."""
    made: list[dict[str, Any]] = []
    for one in slices:
        count = one.get("domainCount") if isinstance(one, dict) else None
        if not isinstance(count, int) or not 0 < count <= MAX_DOMAINS - len(made):
            continue
        counts = _every(one.get("podCounts"), count)
        given = one.get("valuesPerLevel")
        columns = [_values(level, count) for level in given] if isinstance(given, list) else []
        if counts is None or not columns or None in columns:
            continue
        rows = zip(*(column for column in columns if column is not None), strict=True)
        made += [
            {"values": list(values), "count": pods}
            for values, pods in zip(rows, counts, strict=True)
        ]
    return made


def _is_domain(one: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(one.get("count"), int):
        return False
    values = one.get("values")
    if not isinstance(values, list) or not values:
        return False
    return all(isinstance(value, str) for value in values)


def _counts(counts: list[int]) -> dict[str, Any]:
    same = len(set(counts)) == 1
    return {"universal": counts[0]} if same else {"individual": counts}


def _level(values: list[str]) -> dict[str, Any]:
    if len(set(values)) == 1:
        return {"universal": values[0]}
    prefix = _common(values)
    rest = [one[len(prefix) :] for one in values]
    suffix = _common([one[::-1] for one in rest])[::-1]
    roots = [one[: len(one) - len(suffix)] for one in rest]
    made: dict[str, Any] = {"roots": roots}
    if prefix:
        made["prefix"] = prefix
    if suffix:
        made["suffix"] = suffix
    return {"individual": made}


def _common(texts: list[str]) -> str:
    """The common prefix: the first and the last text in order differ the most."""
    first, last = min(texts), max(texts)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(one for one, _ in same)


def _every(counts: Any, domains: int) -> list[Any] | None:
    if not isinstance(counts, dict):
        return None
    if isinstance(counts.get("universal"), int):
        return [counts["universal"]] * domains
    each = counts.get("individual")
    return each if isinstance(each, list) and len(each) == domains else None


def _values(level: Any, domains: int) -> list[str] | None:
    if not isinstance(level, dict):
        return None
    if isinstance(level.get("universal"), str):
        return [level["universal"]] * domains
    each = level.get("individual")
    if not isinstance(each, dict):
        return None
    roots = each.get("roots")
    if not isinstance(roots, list) or len(roots) != domains:
        return None
    prefix, suffix = each.get("prefix") or "", each.get("suffix") or ""
    return [f"{prefix}{root}{suffix}" for root in roots]
