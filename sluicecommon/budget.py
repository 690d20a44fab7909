"""A budget of steps for the evaluation of user input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TEXT_STEP: Final = 64
"""Characters of a text that count as one step."""


class BudgetSpent(Exception):
    """Raised when an evaluation has used up its steps."""


@dataclass(slots=True)
class Budget:
    """Limit of the steps of an evaluation; every loop over a user's values takes one per round."""

    most: int
    whole: Budget | None = None
    """The budget of a larger evaluation that this one is part of."""
    spent: int = 0

    def spend(self, steps: int = 1) -> None:
        """Spend steps. Raises BudgetSpent."""
        self.spent += steps
        if self.spent > self.most:
            raise BudgetSpent(f"more than {self.most} steps")
        if self.whole is not None:
            self.whole.spend(steps)

    def spend_text(self, *texts: str) -> None:
        """Spend the steps of an operation that reads whole texts. Raises BudgetSpent."""
        self.spend(1 + sum(map(len, texts)) // TEXT_STEP)
