"""Reads the installed CDI specifications of NVIDIA's GPUs.

Reading is strict, because the result is given to the container runtime, which runs as root: an
unknown edit is refused, not copied. Source: the Container Device Interface specification, 1.1.0 and
before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.units import GpuUuid

KIND: Final = "nvidia.com/gpu"
OLDEST_VERSION: Final = (0, 5, 0)
"""First version that lets a device's name begin with a digit; containerd 1.7 reads it."""
NEWEST_VERSION: Final = (1, 1, 0)
GENERATE: Final = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"

_EDITS: Final = {
    "env": list,
    "deviceNodes": list,
    "netDevices": list,
    "mounts": list,
    "hooks": list,
    "intelRdt": dict,
    "additionalGids": list,
}
"""containerEdits of CDI 1.1.0. Another key belongs to a newer specification, and copying it could
break the container."""
LISTS: Final = tuple(key for key, kind in _EDITS.items() if kind is list)

Edits = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BaseSpec:
    """The parts of one specification file that are used."""

    source: str
    """Path of the file, for messages."""
    version: tuple[int, int, int]
    edits: Edits
    """Edits for every device of the file."""
    devices: Mapping[str, Edits]


def parse(document: object, source: str) -> BaseSpec | None:
    """Parse one specification file; None if it is not of KIND. Raises ValueError that names the
    file and the key."""
    if not isinstance(document, Mapping):
        raise ValueError(f"{source}: not a CDI specification: no mapping at the top")
    kind = document.get("kind")
    if not isinstance(kind, str):
        raise ValueError(f"{source}: kind: missing")
    if kind != KIND:
        return None
    version = _version(document.get("cdiVersion"), source)
    edits = _edits(document.get("containerEdits"), f"{source}: containerEdits")
    devices = {}
    for index, device in enumerate(_list(document.get("devices"), f"{source}: devices")):
        where = f"{source}: devices[{index}]"
        if not isinstance(device, Mapping):
            raise ValueError(f"{where}: not a mapping")
        name = device.get("name")
        # YAML reads an unquoted 0 as a number.
        if isinstance(name, bool) or not isinstance(name, str | int):
            raise ValueError(f"{where}.name: missing")
        devices[str(name)] = _edits(device.get("containerEdits"), f"{where}.containerEdits")
    return BaseSpec(source, version, edits, devices)


def _version(text: object, source: str) -> tuple[int, int, int]:
    found = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)", text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"{source}: cdiVersion: {text!r} is not a version like 0.5.0")
    version = (int(found[1]), int(found[2]), int(found[3]))
    if version > NEWEST_VERSION:
        raise ValueError(
            f"{source}: cdiVersion {text} is newer than this release knows"
            f" ({dotted(NEWEST_VERSION)}): upgrade sluice, or make nvidia-ctk"
            " write an older version"
        )
    return version


def _edits(value: object, where: str) -> Edits:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: not a mapping")
    for key, part in value.items():
        if key not in _EDITS:
            raise ValueError(f"{where}: {key!r} is not part of CDI {dotted(NEWEST_VERSION)}")
        if part is not None and not isinstance(part, _EDITS[key]):
            raise ValueError(f"{where}.{key}: not a {_EDITS[key].__name__}")
    for key in ("mounts", "hooks", "deviceNodes", "netDevices"):
        for index, entry in enumerate(value.get(key) or ()):
            if not isinstance(entry, Mapping):
                raise ValueError(f"{where}.{key}[{index}]: not a mapping")
    for index, mount in enumerate(value.get("mounts") or ()):
        for key in ("hostPath", "containerPath"):
            if not isinstance(mount.get(key), str) or not mount[key].startswith("/"):
                raise ValueError(f"{where}.mounts[{index}].{key}: not an absolute path")
    for index, assignment in enumerate(value.get("env") or ()):
        if not isinstance(assignment, str) or "=" not in assignment:
            raise ValueError(f"{where}.env[{index}]: not NAME=VALUE")
    return value


def _list(value: object, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{where}: not a list")
    return value


def edits_of(
    specs: Sequence[BaseSpec],
    gpus: Sequence[GpuUuid],
    indexes: Mapping[GpuUuid, int],
    broken: Sequence[str] = (),
) -> tuple[Edits, tuple[int, int, int]]:
    """The edits for these GPUs together, and the CDI version that they need.

    Later specifications win, as in the runtime. `indexes` is used if devices are named by index
    only; `broken` lists the files that could not be read. Raises ValueError if one of the GPUs is
    not found.
    """
    _check_any(specs, broken)
    parts: list[Edits] = []
    version = OLDEST_VERSION
    for gpu in gpus:
        found = device_of(specs, gpu, indexes)
        if found is None:
            raise ValueError(
                f"{gpu} is not in {', '.join(spec.source for spec in specs)}"
                + "".join(f" ({one})" for one in broken)
                + f": the GPU or its MIG layout is newer than the file: run `{GENERATE}` again"
            )
        spec, name = found
        parts += [part for part in (spec.edits, spec.devices[name]) if part not in parts]
        version = max(version, spec.version)
    return _joined(parts), version


def common_edits(
    specs: Sequence[BaseSpec],
    gpus: Sequence[GpuUuid],
    indexes: Mapping[GpuUuid, int],
    broken: Sequence[str] = (),
) -> tuple[Edits, tuple[int, int, int]]:
    """The edits that each of these GPUs has because its specification has them for all its devices,
    and the CDI version that they need.

    GPUs without a specification are ignored. Raises ValueError if two specifications differ.
    """
    _check_any(specs, broken)
    used = [found[0] for gpu in gpus if (found := device_of(specs, gpu, indexes))] or [specs[-1]]
    first = used[0]
    for other in used:
        if other.edits != first.edits:
            raise ValueError(
                f"{first.source} and {other.source} have different containerEdits for the GPUs of"
                " this node: remove the one that is out of date"
            )
    version = max(OLDEST_VERSION, *(spec.version for spec in used))
    return _joined([first.edits]), version


def beyond(edits: Edits, common: Edits) -> Edits:
    """Entries that `edits` has and `common` does not have, in order."""
    return {
        key: [entry for entry in value if entry not in common.get(key, ())]
        if key in LISTS
        else value
        for key, value in edits.items()
        if value != common.get(key)
    }


def _check_any(specs: Sequence[BaseSpec], broken: Sequence[str]) -> None:
    if not specs:
        raise ValueError(
            f"no CDI specification of kind {KIND} is installed"
            + "".join(f" ({one})" for one in broken)
            + f": install the NVIDIA container toolkit and run `{GENERATE}`"
        )


def device_of(
    specs: Sequence[BaseSpec], gpu: GpuUuid, indexes: Mapping[GpuUuid, int]
) -> tuple[BaseSpec, str] | None:
    """The last specification that has the GPU, and the GPU's name in it; None if none has it."""
    names = [str(gpu)] + ([str(indexes[gpu])] if gpu in indexes else [])
    return next(
        ((spec, name) for name in names for spec in reversed(specs) if name in spec.devices), None
    )


def _joined(parts: Sequence[Edits]) -> Edits:
    """Merge edits: each entry once, in order."""
    joined: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if value is None:
                continue
            if key in LISTS:
                kept = joined.setdefault(key, [])
                kept += [entry for entry in value if entry not in kept]
            else:
                joined[key] = value
    return joined


def dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
