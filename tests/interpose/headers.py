"""Declarations of the driver's own headers: every symbol, with the version cuGetProcAddress knows
it by.

The headers come from their packages on PyPI (packaging/fetch/driver-headers.sh) and are read as text:
`cuMemAlloc_v2` is declared by a macro that renames `cuMemAlloc`, the per-thread flavours by
`__CUDA_API_PTSZ(...)`, and the versions are in the names of the typedefs. Run as a program it prints
what the newest headers have and our lists have not, in the form of the lists.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.interpose.symbols import Symbol, driver_symbols, listed
from tests.kit.places import REPO

FOREIGN = {"cuWGLGetDevice"}
"""Windows only."""


class NoHeaders(Exception):
    """They cannot be had here."""


def fetched(newest: bool = False) -> Path:
    environment = {**os.environ, **({"HEADERS": "newest"} if newest else {})}
    done = subprocess.run(
        [REPO / "packaging" / "fetch" / "driver-headers.sh"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    if done.returncode:
        raise NoHeaders(done.stderr.strip().splitlines()[-1] if done.stderr else "no reason given")
    return Path(done.stdout.strip())


def _text(header: Path) -> str:
    return re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)


def _declared(header: Path) -> set[str]:
    text = _text(header)
    names = set(re.findall(r"\bCUresult\s+CUDAAPI\s+(cu\w+)\s*\(", text))
    for renamed in re.findall(r"#\s*define\s+cu[A-Z]\w+\s+(\S+)", text):
        flavoured = re.fullmatch(r"__CUDA_API_(PTDS|PTSZ)\((\w+)\)", renamed)
        if flavoured:
            names |= {flavoured[2], f"{flavoured[2]}_{flavoured[1].lower()}"}
        elif re.fullmatch(r"cu[A-Z]\w+", renamed):
            names.add(renamed)
    return names


def _parts(name: str) -> tuple[str, int, bool]:
    found = re.fullmatch(r"(\w+?)(?:_v(\d))?(_pt(?:sz|ds))?", name)
    assert found, name
    return found[1], int(found[2] or 1), bool(found[3])


def driver_api(place: Path) -> dict[str, Symbol]:
    """Every symbol of the driver API. The newest form of a function has the newest of its versions."""
    headers = [place / f"{n}.h" for n in ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")]
    names = set().union(*(_declared(header) for header in headers)) - FOREIGN
    versions: dict[tuple[str, bool], set[int]] = {}
    for header in place.glob("cuda*Typedefs.h"):
        for base, since, flavour in re.findall(
            r"\*\s*PFN_(\w+?)_v(\d{4,5})(_pt[sd][sz])?\)", header.read_text(encoding="utf-8")
        ):
            versions.setdefault((base, bool(flavour)), set()).add(int(since))
    forms: dict[tuple[str, bool], list[tuple[int, str]]] = {}
    for name in names:
        base, form, per_thread = _parts(name)
        forms.setdefault((base, per_thread), []).append((form, name))
    found = {}
    for (base, per_thread), named in forms.items():
        known = sorted(versions.get((base, per_thread), set()), reverse=True)
        for (_, name), since in zip(sorted(named, reverse=True), known, strict=False):
            found[name] = Symbol(name, since, base)
    return found


def nvml_api(place: Path) -> set[str]:
    return set(re.findall(r"\bDECLDIR\s+(?:char\s*\*\s*)?(nvml\w+)\s*\(", _text(place / "nvml.h")))


def our_nvml() -> set[str]:
    lists = (("hooks.def", "HOOK"), ("hooks.def", "DRIVER_ONLY"), ("forward.def", "FORWARD"))
    return {name for path, macro in lists for name in listed(f"nvml/{path}", macro)}


def news(place: Path) -> list[str]:
    """Lines that cuda_symbols.txt and nvml/forward.def lack."""
    ours = driver_symbols()
    lines = [
        f"{one.name} {one.since} {one.base}"
        for name, one in sorted(driver_api(place).items())
        if ours.get(name) != one
    ]
    return lines + [f"FORWARD({name})" for name in sorted(nvml_api(place) - our_nvml())]


if __name__ == "__main__":
    found = news(fetched(newest=True))
    print("\n".join(found) or "the lists have all that the newest headers declare")
    sys.exit(1 if found else 0)
