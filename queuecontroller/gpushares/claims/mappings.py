"""Kueue's `deviceClassMappings`: the quota that a device class counts for, and its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queuecontroller.gpushares.claims.cel import check
from sluicecommon.kubernetes.quantity import CPU, PODS
from sluicecommon.reader import Reader, shown

MAX_MAPPINGS: Final = 16
MAX_CLASSES: Final = 8
MAX_SOURCES: Final = 8
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_LABEL}")
_CLASS: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?:/{_LABEL})?")
_DRIVER: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_CAPACITY: Final = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}")


@dataclass(frozen=True, slots=True)
class Source:
    """A counter or a capacity of a device that is counted instead of the device itself."""

    counter: bool
    """True for a counter that the device consumes of its card, False for a capacity of its own."""
    name: str
    driver: str
    selector: str
    """CEL selector of the devices that count."""


@dataclass(frozen=True, slots=True)
class Mapped:
    """Mapping of a device class."""

    resource: str
    """Quota name, used if devices are counted."""
    sources: tuple[tuple[str, Source], ...] = ()
    """Sources, each with the quota it counts for; empty: devices are counted."""


DeviceClasses = Mapping[str, Mapped]
"""Mappings by the name of the class."""


def read_mappings(readers: Sequence[Reader]) -> dict[str, Mapped]:
    """Parse the mappings. A class may be in several mappings with sources: each is a quota of its
    own."""
    found: dict[str, Mapped] = {}
    names: set[str] = set()
    for number, reader in enumerate(readers):
        name = reader.required("name")
        if name and (not _NAME.fullmatch(name) or len(name) > 253 or name in (CPU, PODS)):
            reader.problem(
                "name", f"expected the name of a quota, got {shown(name)}", "write DOMAIN/NAME"
            )
        if name in names:
            reader.problem("name", f"{name} is given twice", "put its classes into one mapping")
        if number == MAX_MAPPINGS:
            reader.problem("", f"there are more than {MAX_MAPPINGS} mappings", "join some")
        names.add(name)
        classes = reader.texts("deviceClassNames")
        if not classes:
            reader.missing("deviceClassNames")
        if len(classes) > MAX_CLASSES:
            what = f"{len(classes)} classes, more than {MAX_CLASSES}"
            reader.problem("deviceClassNames", what, "make two mappings")
        sources = tuple(_source(one) for one in reader.children("sources"))
        if len(sources) > MAX_SOURCES:
            reader.problem("sources", f"more than {MAX_SOURCES}", "leave some out")
        if len({one.counter for one in sources}) > 1:
            what = "counters and capacities are counted in one number"
            reader.problem("sources", what, "make two mappings")
        for one in classes:
            if not _CLASS.fullmatch(one) or len(one) > 253:
                reader.problem(
                    "deviceClassNames", f"expected the name of a DeviceClass, got {shown(one)}"
                )
                continue
            before = found.get(one)
            if before is not None and not (before.sources and sources):
                what = f"{one} is in the mapping {before.resource} already"
                reader.problem("deviceClassNames", what, "a class that is counted has one mapping")
                continue
            known = before or Mapped(name)
            more = tuple((name, source) for source in sources)
            found[one] = Mapped(known.resource, known.sources + more)
        reader.done()
    return found


def _source(reader: Reader) -> Source:
    kinds = [kind for kind in ("counter", "capacity") if reader.has(kind)]
    if len(kinds) != 1:
        reader.problem("", "has to have one of counter and capacity", "write one of them")
        reader.done()
        return Source(False, "", "", "")
    inner = reader.child(kinds[0])
    name, driver = inner.required("name"), inner.required("driver")
    wanted = re.compile(_LABEL) if kinds[0] == "counter" else _CAPACITY
    if name and not wanted.fullmatch(name):
        inner.problem("name", f"expected the name of a {kinds[0]}, got {shown(name)}")
    if driver and (not _DRIVER.fullmatch(driver) or len(driver) > 63):
        inner.problem(
            "driver",
            f"expected the name of a driver, got {shown(driver)}",
            "write one as sluice.dev",
        )
    selector = inner.child("deviceSelector")
    cel = selector.child("cel")
    expression = cel.required("expression")
    if expression and (wrong := check(expression)):
        cel.problem("expression", wrong[:300])
    for one in (cel, selector, inner, reader):
        one.done()
    return Source(kinds[0] == "counter", name, driver, expression)
