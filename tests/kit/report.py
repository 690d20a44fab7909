"""Report of a demo: its promises and measurements, a line for each, all of them for a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHARE_TOLERANCE = 0.03


@dataclass
class Report:
    facts: dict[str, Any] = field(default_factory=lambda: {"shares": []})
    rows: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def share(self, what: str, want: float, got: float) -> None:
        self.facts["shares"].append({"name": what, "want_ratio": want, "got_ratio": round(got, 4)})
        self.row(
            what, f"{want:.0%} of the GPU's time", f"{got:.1%}", abs(want - got) <= SHARE_TOLERANCE
        )

    def row(self, what: str, want: str, got: str, held: bool) -> None:
        self.rows.append((what, want, got, held))
        print(f"  {'ok  ' if held else 'FAIL'} {what:<46} want {want:<26} got {got}", flush=True)

    @property
    def held(self) -> bool:
        return all(row[3] for row in self.rows)


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)
