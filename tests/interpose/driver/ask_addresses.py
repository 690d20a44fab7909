"""Run as a program: what a libcuda.so.1 answers to every question of cuGetProcAddress, one line each.

Addresses differ from run to run, so an answer is told by the exported names that have this address,
of the driver or of the library that stands in its place, or else by its offset in the driver.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
from pathlib import Path

from tests.interpose.driver.ask_names import exported

UNTOUCHED = 0x5EED


def addresses(library: c.CDLL, names: list[str]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name in names:
        at = c.cast(getattr(library, name), c.c_void_p).value
        if at:
            found.setdefault(at, []).append(name)
    return found


def base_of(path: str) -> int:
    with open("/proc/self/maps") as maps:
        lines = [line.split() for line in maps if os.path.realpath(path) in line]
    return int(lines[0][0].partition("-")[0], 16)


def main() -> None:
    place, real, questions = sys.argv[1:]
    with open(questions) as file:
        asked = json.load(file)
    library = c.CDLL(place)
    answer: dict[str, object] = {"init": library.cuInit(0)}
    driver = c.CDLL(real)
    names = list(exported(Path(real)))
    known = addresses(driver, names)
    if place != real:
        for at, ours in addresses(library, [n for n in names if hasattr(library, n)]).items():
            known.setdefault(at, ours)
    base = base_of(real)
    lines = []
    for entry, symbol, version, flags in asked:
        if entry not in names:
            continue
        pointer, status = c.c_void_p(UNTOUCHED), c.c_int(-7)
        arguments = [symbol.encode(), c.byref(pointer), version, c.c_uint64(flags)]
        if "_v2" in entry:
            arguments.append(c.byref(status))
        r = getattr(library, entry)(*arguments)
        at = pointer.value or 0
        what = known.get(at) or (at if at in (0, UNTOUCHED) else f"offset {at - base:#x}")
        lines.append([r, status.value, what])
    answer["answers"] = lines
    table = c.c_void_p(UNTOUCHED)
    answer["table"] = [library.cuGetExportTable(c.byref(table), bytes(16)), table.value]
    print(json.dumps(answer))


main()
