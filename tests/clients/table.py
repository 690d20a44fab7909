"""The table client x bare x in a grant: printed at the end of a run and written to build/clients.json."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.kit.places import BUILD


@dataclass(frozen=True)
class Row:
    client: str
    version: str
    where: str
    """`bare` or `in a grant`."""
    result: str
    """`holds`, or why there is none."""
    told: dict[str, Any] = field(default_factory=dict)


ROWS: list[Row] = []


def to_plain() -> list[dict[str, Any]]:
    return [asdict(row) for row in ROWS]


def from_plain(rows: list[dict[str, Any]]) -> None:
    ROWS.extend(Row(**row) for row in rows)


def write() -> None:
    (BUILD / "clients.json").write_text(json.dumps(to_plain(), indent=1) + "\n")


def lines() -> list[str]:
    form = "{:<16} {:<12} {:<11} {:<22} {}"
    out = [form.format("client", "version", "where", "result", "what it saw")]
    for row in ROWS:
        told = ", ".join(f"{name} {value}" for name, value in row.told.items())
        out.append(form.format(row.client, row.version, row.where, row.result, told))
    return out
