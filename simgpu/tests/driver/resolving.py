"""Asking cuGetProcAddress for names, and telling which symbol each answer is."""

from __future__ import annotations

import ctypes as c

from tests.kit.places import REPO
from tests.kit.simulator.clients import Cuda

ROWS = [
    line.split()
    for line in (REPO / "interpose" / "driver" / "cuda_symbols.txt").read_text().splitlines()
]


def resolve(cuda: Cuda, wanted: list[tuple[str, int, int]]) -> list[tuple[int, int, str | None]]:
    """(code, status, symbol) of each (name, version, flags)."""
    symbols = {}
    for symbol, _, _ in ROWS:
        try:
            symbols[c.cast(getattr(cuda.library, symbol), c.c_void_p).value] = symbol
        except AttributeError:
            continue
    answers = []
    for name, version, flags in wanted:
        pointer, status = c.c_void_p(), c.c_int(-1)
        code = cuda.try_(
            "cuGetProcAddress_v2",
            name.encode(),
            c.byref(pointer),
            version,
            c.c_uint64(flags),
            c.byref(status),
        )
        answers.append((code, status.value, symbols.get(pointer.value)))
    return answers
