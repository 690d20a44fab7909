"""Files as a disk that fails leaves them."""

from __future__ import annotations

import random
from pathlib import Path


def damage(path: Path, dice: random.Random) -> str:
    data = bytearray(path.read_bytes())
    how = dice.choice(["bit", "bit", "bits", "cut", "zeros", "noise", "text"])
    if how == "cut" or not data:
        del data[dice.randrange(len(data) + 1) :]
    elif how in ("bit", "bits"):
        for _ in range(1 if how == "bit" else 16):
            # Half of them in the first page: the header and the schema's text are there.
            most = len(data) if dice.random() < 0.5 else min(len(data), 4096)
            data[dice.randrange(most)] ^= 1 << dice.randrange(8)
    elif how == "text":  # a letter of the schema or of a row is none any more
        at = [i for i in range(len(data)) if 0x61 <= data[i] <= 0x7A]
        for i in dice.sample(at, min(len(at), 3)):
            data[i] |= 0x80
    else:
        start = dice.randrange(len(data)) // 512 * 512
        size = min(512 << dice.randrange(4), len(data) - start)
        data[start : start + size] = bytes(size) if how == "zeros" else dice.randbytes(size)
    path.write_bytes(bytes(data))
    return f"{how} in {path.name}"
