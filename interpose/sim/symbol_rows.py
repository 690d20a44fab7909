"""Turns the driver's symbol list (symbol, first CUDA version, base name a line) into C rows."""

import sys

for line in open(sys.argv[1], encoding="ascii"):
    symbol, since, name = line.split()
    print(f'{{ "{name}", {since}, "{symbol}" }},')
