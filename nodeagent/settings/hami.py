"""Translates HAMi's own configuration into our settings, for one node.

There are two documents: `device-config.yaml` (of the ConfigMap hami-scheduler-device) has the names
of the resources and what holds everywhere; `config.json` (of hami-device-plugin) has an entry per
node. Their keys are HAMi's interface (v2.10), and the tables below have all of them. A key that has
no effect here is reported by a warning of its own, never ignored silently; a document that cannot
be read is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeagent.settings.kubelet import KubeletConfig, Layer
from sluicecommon.hami import VENDORS, HamiPart, PartKind, short
from sluicecommon.settings import ConfigError, as_field, check_value, known_fields, nearest

_DEVICE_KEYS: Final[Mapping[str, str]] = {
    "resourceCountName": "resource_count",
    "resourceMemoryName": "resource_memory",
    "resourceMemoryPercentageName": "resource_memory_percentage",
    "resourceCoreName": "resource_cores",
    "resourcePriorityName": "resource_priority",
    "defaultMem": "default_memory_mib",  # This is the chart's spelling.
    "defaultMemory": "default_memory_mib",  # This is the code's spelling.
    "defaultCores": "default_cores_percent",
    "memoryFactor": "memory_factor",
    "deviceSplitCount": "slots_per_gpu",
    "deviceMemoryScaling": "memory_scaling",
    "enableNumaTopology": "numa_topology",
}
_NODE_KEYS: Final[Mapping[str, str]] = {
    "devicesplitcount": "slots_per_gpu",
    "devicememoryscaling": "memory_scaling",
    "migstrategy": "mig_strategy",
    "enablenumatopology": "numa_topology",
}
_MODES: Final[Mapping[str, str]] = {"": "share", "hami-core": "share", "mig": "mig", "mps": "mps"}
_CORE_POLICIES: Final[Mapping[str, str]] = {
    "": "hard",
    "default": "hard",
    "force": "hard",
    "disable": "elastic",
}

_NO_LOG: Final = (
    "is not applied: the library in the container writes no log; see `sluice ps` and /metrics"
)
_NO_CORE_SCALING: Final = (
    "is not applied: hard shares of one GPU add up to 100 percent at most; elastic ones"
    " (cores_policy) may add up to more"
)
_NO_INVENTED_MEMORY: Final = "is not applied: a card's memory is read from NVML"


@dataclass(frozen=True, slots=True)
class _Undone:
    """A key of HAMi's that has no effect here."""

    why: str
    nothing: tuple[object, ...] = ()
    """Values that request nothing, so that no warning is needed."""


_DEVICE_UNDONE: Final[Mapping[str, _Undone]] = {
    "defaultGPUNum": _Undone(
        "is not applied: nothing here changes pods, so a pod that needs a GPU has to request"
        " {resource_count} itself"
    ),
    "deviceCoreScaling": _Undone(_NO_CORE_SCALING, (1,)),
    "libCudaLogLevel": _Undone(_NO_LOG),
    "preConfiguredDeviceMemory": _Undone(_NO_INVENTED_MEMORY, (0,)),
    "overwriteEnv": _Undone(
        "is not applied: nothing here changes pods; to keep containers from taking GPUs by"
        " NVIDIA_VISIBLE_DEVICES set accept-nvidia-visible-devices-envvar-when-unprivileged ="
        " false for the NVIDIA container runtime",
        (False,),
    ),
    "runtimeClassName": _Undone(
        "is not applied: nothing here changes pods; with CDI no runtime class is needed", ("",)
    ),
    "migProfileAllowlist": _Undone(
        "is not applied: every profile of a card may be requested", ([],)
    ),
}
_NODE_UNDONE: Final[Mapping[str, _Undone]] = {
    "devicecorescaling": _Undone(_NO_CORE_SCALING, (1,)),
    "libcudaloglevel": _Undone(_NO_LOG),
    "preconfigureddevicememory": _Undone(_NO_INVENTED_MEMORY, (0,)),
    "enablegetpreferredallocation": _Undone(
        "cannot be switched off: the preference costs nothing and the kubelet may ignore it",
        (True,),
    ),
}


@dataclass(frozen=True, slots=True)
class HamiReading:
    layers: tuple[Layer, ...] = ()
    """In the order of increasing weight."""
    warnings: tuple[str, ...] = ()


def read(parts: Iterable[HamiPart], node: str) -> HamiReading:
    """Read device configurations and node configurations; entries of other nodes are ignored.
    Raises ConfigError with all mistakes."""
    problems: list[str] = []
    warnings: list[str] = []
    layers: list[Layer] = []
    ordered = sorted(parts, key=lambda part: part.kind is PartKind.NODE_CONFIG)
    for part in ordered:
        if part.kind is PartKind.DEVICE_CONFIG:
            layers.append(_device_layer(part, problems, warnings))
        elif part.kind is PartKind.NODE_CONFIG:
            layers += _node_layers(part, node, problems, warnings)
    if problems:
        raise ConfigError(problems)
    return HamiReading(tuple(layers), tuple(warnings))


def _device_layer(part: HamiPart, problems: list[str], warnings: list[str]) -> Layer:
    values: dict[str, Any] = {}
    for section, body in part.document.items():
        where = f"{part.source}: {section}"
        if section == "nvidia":
            if not isinstance(body, Mapping):
                problems.append(f"{where}: must be a mapping, got {short(body)}")
                continue
            values = _section(
                body, where, _DEVICE_KEYS, _device_special, _DEVICE_UNDONE, problems, warnings
            )
        elif section in VENDORS:
            warnings.append(f"{where}: {not_served(VENDORS[section], resource_names(body))}")
        else:
            warnings.append(
                f"{where}: is not applied: no such section is known here"
                f"{nearest(str(section), ('nvidia', *VENDORS))}"
            )
    return Layer(part.source, values)


def _node_layers(
    part: HamiPart, node: str, problems: list[str], warnings: list[str]
) -> list[Layer]:
    layers = []
    for key, body in part.document.items():
        if key.lower() != "nodeconfig":
            warnings.append(
                f"{part.source}: {key}: is not applied: no such key is known here; known:"
                " nodeconfig"
            )
            continue
        if not isinstance(body, Sequence) or isinstance(body, str):
            problems.append(f"{part.source}: {key}: must be a list of nodes, got {short(body)}")
            continue
        for index, entry in enumerate(body):
            where = f"{part.source}: {key}[{index}]"
            if not isinstance(entry, Mapping):
                problems.append(f"{where}: must be a mapping, got {short(entry)}")
                continue
            # Go reads keys without regard to case.
            small = {str(name).lower(): value for name, value in entry.items()}
            name = small.pop("name", None)
            if not isinstance(name, str) or not name:
                problems.append(f"{where}.name: must be the name of a node, got {short(name)}")
            elif name == node:
                found = f"{where} ({name})"
                values = _section(
                    small, found, _NODE_KEYS, _node_special, _NODE_UNDONE, problems, warnings
                )
                layers.append(Layer(found, values))
    return layers


_Special = Callable[[str, Any], Mapping[str, Any] | str | None]
"""Translates a key that needs more than another name; a text says what is wrong with its value, and
None means that the key is not a special one."""


def _section(
    body: Mapping[str, Any],
    where: str,
    renamed: Mapping[str, str],
    special: _Special,
    undone: Mapping[str, _Undone],
    problems: list[str],
    warnings: list[str],
) -> dict[str, Any]:
    ours = known_fields(KubeletConfig)
    values: dict[str, Any] = {}
    for key, value in body.items():
        here = f"{where}.{key}"
        meant = special(key, value)
        if isinstance(meant, str):
            problems.append(f"{here}: {meant}")
        elif meant is not None:
            values.update(meant)
        elif key in renamed:
            field = ours[renamed[key]]
            wrong = check_value(field, value)
            if wrong is not None:
                problems.append(f"{here}: {wrong}")
            else:
                values[field.name] = as_field(field, value)
        elif key in undone:
            if value not in undone[key].nothing:
                count = str(body.get("resourceCountName", "nvidia.com/gpu"))
                why = undone[key].why.replace("{resource_count}", count)
                warnings.append(f"{here}: {short(value)} {why}")
        else:
            known = (*renamed, *undone, *_SPECIAL_KEYS)
            warnings.append(
                f"{here}: is not applied: no such key is known here{nearest(str(key), known)}"
            )
    return values


_SPECIAL_KEYS: Final = ("gpuCorePolicy", "disableCoreLimit", "operatingmode", "filterdevices")


def _device_special(key: str, value: Any) -> Mapping[str, Any] | str | None:
    if key == "gpuCorePolicy":
        if value not in _CORE_POLICIES:
            return f"must be one of default, force, disable, got {short(value)}"
        return {"cores_policy": _CORE_POLICIES[value]}
    if key == "disableCoreLimit":
        if not isinstance(value, bool):
            return f"must be true or false, got {short(value)}"
        return {"cores_policy": "elastic"} if value else {}
    return None


def _node_special(key: str, value: Any) -> Mapping[str, Any] | str | None:
    if key == "operatingmode":
        if value not in _MODES:
            return f"must be one of hami-core, mig, mps, got {short(value)}"
        return {"mode": _MODES[value]}
    if key == "filterdevices":
        return _filter(value)
    return None


def _filter(value: Any) -> Mapping[str, Any] | str:
    """The devices that HAMi does not use."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not value.keys() <= {"uuid", "index"}:
        return f'must be {{"uuid": […], "index": […]}}, not {short(value)}'
    fields = known_fields(KubeletConfig)
    found: dict[str, Any] = {}
    for name, key in (("uuid", "exclude_uuids"), ("index", "exclude_indexes")):
        given = value.get(name) or []
        wrong = check_value(fields[key], given)
        if wrong is not None:
            return f"{name} {wrong}"
        found[key] = tuple(given)
    found["exclude_uuids"] = tuple(_lower_uuid(one) for one in found["exclude_uuids"])
    return found


def _lower_uuid(text: str) -> str:
    prefix, dash, rest = text.partition("-")
    return f"{prefix.upper()}{dash}{rest.lower()}"


def not_served(vendor: str, resources: Sequence[str]) -> str:
    asked = f"; pods that request {', '.join(resources)}" if resources else "; its pods"
    return f"{vendor} is not served here yet{asked} need that vendor's own device plugin"


def resource_names(body: object) -> list[str]:
    """All names of resources in a vendor's section, whatever its form."""
    if isinstance(body, Mapping):
        own = [
            value
            for key, value in body.items()
            if isinstance(value, str) and str(key).startswith("resource") and "/" in value
        ]
        return own + [name for value in body.values() for name in resource_names(value)]
    if isinstance(body, list):
        return [name for item in body for name in resource_names(item)]
    return []
