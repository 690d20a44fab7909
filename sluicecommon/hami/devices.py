"""Devices registered by other vendors' plugins, and allocations of them: parsing and writing the
texts of HAMi's protocol.

The size of a plugin's register is limited, and it is trusted only for the vendor's own devices.
Memory is in MiB, cores in the vendor's unit (percent, or cores of a chip).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sluicecommon.reader import shown

MAX_DEVICES: Final = 1024
"""Devices per vendor and node."""
LONGEST: Final = 256 << 10
"""Characters; the API server's limit for all annotations of an object."""
MOST: Final = (1 << 31) - 1
"""HAMi's numbers have 32 bits."""
NOTHING_MORE: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
_SHORT, _LONG = 7, 9
"""Number of fields per device in the older form, without and with index and mode."""


class BadRegister(ValueError):
    """Raised for a malformed register; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Device:
    id: str
    index: int
    slots: int
    """Maximum number of pods at a time."""
    memory_mib: int
    cores: int
    type: str
    numa: int = 0
    mode: str = ""
    healthy: bool = True
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the vendor's own rules."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of one device that is allocated to a container."""

    device: str
    index: int
    type: str
    memory_mib: int
    cores: int
    slots: int = 1
    info: Mapping[str, Any] = field(default_factory=dict)


Given = tuple[tuple[Part, ...], ...]
"""Parts by container, init containers first."""


# -- registers ------------------------------------------------------------------------------------


def read_register(text: str) -> tuple[Device, ...]:
    """Parse a register in either form: JSON as current HAMi has it, or the older one with commas
    and colons. Raises BadRegister."""
    if len(text) > LONGEST:
        raise BadRegister(f"{len(text)} characters are more than {LONGEST}")
    text = text.strip()
    entries = _json_list(text) if text.startswith("[") else _plain_list(text)
    return checked(entries)


def checked(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The devices as a tuple. Raises BadRegister if there are too many or duplicate IDs."""
    found: dict[str, Device] = {}
    for one in devices:
        if one.id in found:
            raise BadRegister(f"device {shown(one.id)} is a duplicate")
        found[one.id] = one
        if len(found) > MAX_DEVICES:
            raise BadRegister(f"more than {MAX_DEVICES} devices")
    return tuple(found.values())


def parsed(text: str) -> Any:
    """Parse JSON of limited length. Raises BadRegister."""
    if len(text) > LONGEST:
        raise BadRegister(f"{len(text)} characters are more than {LONGEST}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRegister(f"is not JSON: {str(error)[:200]}") from error


def number(value: object, what: str, default: int = 0) -> int:
    """Parse a number from 0 to MOST. Raises BadRegister."""
    if value is None:
        return default
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value.strip()[:12])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise BadRegister(f"{what}: expected a number from 0 to {MOST}, got {shown(value)}")
    return value


def name(value: object, what: str) -> str:
    """Check a name that an allocation can contain: it must not have the separators. Raises
    BadRegister."""
    if not isinstance(value, str) or not value or len(value) > 253 or set(value) & set(",:;\n"):
        raise BadRegister(f"{what}: expected a name without , : ; got {shown(value)}")
    return value


def _json_list(text: str) -> Iterable[Device]:
    for i, one in enumerate(parsed(text)):
        at = f"device {i}"
        if not isinstance(one, dict):
            raise BadRegister(f"{at}: expected an object, got {shown(one)}")
        info = one.get("custominfo")
        yield Device(
            name(one.get("id"), f"{at}: id"),
            number(one.get("index"), f"{at}: index"),
            number(one.get("count"), f"{at}: count"),
            number(one.get("devmem"), f"{at}: devmem"),
            number(one.get("devcore"), f"{at}: devcore"),
            str(one.get("type") or "")[:253],
            max(0, _numa(one.get("numa"))),
            str(one.get("mode") or "")[:253],
            one.get("health") is True,  # Go's writer omits the field where it is false.
            info if isinstance(info, dict) else {},
        )


def _numa(value: object) -> int:
    """NUMA node; -1 if the machine reports none."""
    return value if isinstance(value, int) and -1 <= value <= 1024 else 0


def _plain_list(text: str) -> Iterable[Device]:
    if ":" not in text:
        raise BadRegister(f"expected JSON or devices that end with a colon, got {shown(text)}")
    for i, one in enumerate(part for part in text.split(":") if part):
        at, fields = f"device {i}", one.split(",")
        if len(fields) not in (_SHORT, _LONG):
            raise BadRegister(f"{at}: has {len(fields)} fields, not {_SHORT} or {_LONG}")
        if fields[6].strip().lower() not in ("true", "false"):
            raise BadRegister(f"{at}: health: must be true or false, got {shown(fields[6])}")
        numa = fields[5].strip()
        yield Device(
            name(fields[0], f"{at}: id"),
            number(fields[7], f"{at}: index") if len(fields) == _LONG else i,
            number(fields[1], f"{at}: count"),
            number(fields[2], f"{at}: devmem"),
            number(fields[3], f"{at}: devcore"),
            fields[4],
            0 if numa == "-1" else number(numa, f"{at}: numa"),
            fields[8] if len(fields) == _LONG else "hami-core",
            fields[6].strip().lower() == "true",
        )


def write_register(
    devices: Sequence[Device], more: Mapping[str, Mapping[str, Any]] = NOTHING_MORE
) -> str:
    """Register as JSON without zero values and `info`. `more` has further fields by device."""
    entries = []
    for one in devices:
        entry: dict[str, Any] = {
            "id": one.id,
            "index": one.index,
            "count": one.slots,
            "devmem": one.memory_mib,
            "devcore": one.cores,
            "type": one.type,
            "numa": one.numa,
            "mode": one.mode,
            "health": one.healthy,
            **more.get(one.id, {}),
        }
        entries.append({key: value for key, value in entry.items() if value})
    return json.dumps(entries, separators=(",", ":"))


# -- allocations ----------------------------------------------------------------------------------


def encode(given: Given) -> str:
    """Allocation as text: `ID,TYPE,MiB,cores:` per part, and `;` after each container."""
    return "".join(
        "".join(f"{p.device},{p.type},{p.memory_mib},{p.cores}:" for p in parts) + ";"
        for parts in given
    )


def decode(text: str) -> Given:
    """Parse an allocation. Raises BadRegister."""
    if len(text) > LONGEST:
        raise BadRegister(f"{len(text)} characters are more than {LONGEST}")
    containers = text.split(";")
    if not containers[-1].strip():
        del containers[-1]
    given = []
    for i, one in enumerate(containers):
        parts = []
        for piece in one.split(":"):
            if not piece:
                continue
            fields = piece.split(",")
            if len(fields) < 4:
                raise BadRegister(f"container {i}: {shown(piece)} is not ID,TYPE,MiB,CORES")
            parts.append(
                Part(
                    name(fields[0], f"container {i}: id"),
                    -1,
                    fields[1],
                    number(fields[2], f"container {i}: memory"),
                    number(fields[3], f"container {i}: cores"),
                )
            )
        given.append(tuple(parts))
    return tuple(given)
