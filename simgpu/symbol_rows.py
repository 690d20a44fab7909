"""Turns the driver's symbol list (symbol, first CUDA version, base name a line) into C rows."""

import sys
from pathlib import Path

for line in Path(sys.argv[1]).read_text(encoding="ascii").splitlines():
    symbol, since, name = line.split()
    print(f'{{ "{name}", {since}, "{symbol}" }},')
