"""Cards for the tests of memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.simulator.clients import Card, card


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim") as it:
        yield it


@pytest.fixture
def two_gpus(tmp_path: Path) -> Iterator[Card]:
    with card(tmp_path / "sim", "2xh100-80gb") as it:
        yield it
