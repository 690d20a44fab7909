"""Names of a driver library as C rows, REST(name): the lists of symbols given, each name once.

A list is hooks.def or forward.def (the first driver symbol in the brackets), or
cuda_symbols.txt (the first word).
"""

import re
import sys
from pathlib import Path

NAME = re.compile(
    r"^(?:HOOK|DRIVER_ONLY|FORWARD)\([^;]*?\b((?:cu|nvml(?!Return_t))[A-Za-z0-9_]+)\s*[,)]",
    re.MULTILINE,
)
WORD = re.compile(r"^(cu\w+) ", re.MULTILINE)

names = set()
for path in map(Path, sys.argv[1:]):
    text = path.read_text(encoding="ascii")
    names.update((WORD if path.suffix == ".txt" else NAME).findall(text))
for name in sorted(names):
    print(f"REST({name})")
