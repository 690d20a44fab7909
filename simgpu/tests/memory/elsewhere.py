"""Memory that a client process was given or opened: what it keeps of it from one call to the next."""

from __future__ import annotations

from typing import Any

from tests.kit.simulator.clients import Cuda
from tests.kit.simulator.cuda import get, put

there: dict[str, Any] = {}


def write_there(cuda: Cuda, data: bytes) -> None:
    put(cuda, there["at"], data)


def read_there(cuda: Cuda, size: int) -> bytes:
    return get(cuda, there["at"], size)
