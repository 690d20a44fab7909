"""The lists of driver symbols, as the tests read them: interpose/driver/{cuda_symbols.txt,hooks.def,forward.def}."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.kit.places import REPO

INTERPOSE = REPO / "interpose"


@dataclass(frozen=True)
class Symbol:
    name: str
    since: int
    """First CUDA version, as cuGetProcAddress counts: 1000 * major + 10 * minor."""
    base: str
    """The name by which cuGetProcAddress knows it."""

    @property
    def form(self) -> int:
        """The n of its _v<n>."""
        found = re.match(r"_v(\d)", self.name[len(self.base) :])
        return int(found[1]) if found else 1

    @property
    def per_thread(self) -> bool:
        return "_pt" in self.name[len(self.base) :]


@dataclass(frozen=True)
class Hook:
    group: str
    since: int


def driver_symbols() -> dict[str, Symbol]:
    """Every symbol of the driver API, the superseded ones included."""
    rows = (
        line.split()
        for line in (INTERPOSE / "driver" / "cuda_symbols.txt").read_text().splitlines()
    )
    return {name: Symbol(name, int(since), base) for name, since, base in rows}


@dataclass(frozen=True)
class Unlisted:
    """An export of real drivers that cuGetProcAddress does not know."""

    is_function: bool
    ours: bool
    """Handed on by us; else left to the driver, where a debugger looks for it."""


def unlisted() -> dict[str, Unlisted]:
    lines = (INTERPOSE / "driver" / "cuda_unlisted.txt").read_text().splitlines()
    rows = (line.split() for line in lines if not line.startswith("#"))
    return {name: Unlisted(kind == "function", where == "shim") for name, kind, where in rows}


def exported() -> set[str]:
    """Symbols that the interposer exports in the place of libcuda.so.1, without the marker."""
    return {*driver_symbols(), *(name for name, one in unlisted().items() if one.ours)}


def hooks() -> dict[str, Hook]:
    found = re.findall(
        r"^HOOK\((\w+), \w+, (\w+), \(.*\), (\d+)\)$",
        (INTERPOSE / "driver" / "hooks.def").read_text(),
        re.MULTILINE,
    )
    return {name: Hook(group, int(since)) for group, name, since in found}


def listed(path: str, macro: str) -> list[str]:
    """The names a .def file lists under a macro, whatever their other arguments are."""
    text = (INTERPOSE / path).read_text()
    return re.findall(rf"^{macro}\((?:\w+, )*?(\w+)(?:\)|, \()", text, re.MULTILINE)
