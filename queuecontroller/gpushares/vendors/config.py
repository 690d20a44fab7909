"""Parser for HAMi's device-config.yaml: the vendors' rows with this cluster's names, and the
settings for NVIDIA's cards at pod admission. The file is long because each section has its table
here.

Keys without effect here are reported as warnings, invalid values as errors; all errors of a file
are collected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.gpushares.vendors.ascend import Chip, Template
from queuecontroller.gpushares.vendors.rules import Vendor
from queuecontroller.gpushares.vendors.table import CHIPS, ROWS, ascend, iluvatar
from sluicecommon.hami import VENDORS, short
from sluicecommon.settings import ConfigError, nearest

POLICIES: Final = ("default", "force", "disable")
MOST: Final = 64
"""Chips per section."""


@dataclass(frozen=True, slots=True)
class Nvidia:
    """Section `nvidia`, as far as it concerns pods; the agent reads the rest."""

    count: str = "nvidia.com/gpu"
    memory: str = "nvidia.com/gpumem"
    percent: str = "nvidia.com/gpumem-percentage"
    cores: str = "nvidia.com/gpucores"
    priority: str = "nvidia.com/priority"
    default_memory_mib: int = 0
    """0: the whole memory."""
    default_cores: int = 0
    default_gpus: int = 1
    """0: pods that request only memory or cores are left unchanged."""
    memory_factor: int = 1
    core_policy: str = "default"
    runtime_class: str = ""
    overwrite_env: bool = False
    """True if containers without a GPU get an environment variable that hides all GPUs."""

    @property
    def resources(self) -> tuple[str, ...]:
        return (self.count, self.memory, self.percent, self.cores, self.priority)


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    nvidia: Nvidia = field(default_factory=Nvidia)
    vendors: tuple[Vendor, ...] = ROWS
    is_given: bool = False
    """True if a file is configured; HAMi's other defaults apply then as well, such as choosing the
    emptiest GPU first."""
    warnings: tuple[str, ...] = ()


_OF_THE_NODE: Final = "is the node's: kubelet.hami of the agent reads it"
_OF_THE_PLUGIN: Final = "is for the vendor's own device plugin"
_NVIDIA: Final[Mapping[str, tuple[str, type]]] = {
    "resourceCountName": ("count", str),
    "resourceMemoryName": ("memory", str),
    "resourceMemoryPercentageName": ("percent", str),
    "resourceCoreName": ("cores", str),
    "resourcePriorityName": ("priority", str),
    "defaultMem": ("default_memory_mib", int),
    "defaultMemory": ("default_memory_mib", int),
    "defaultCores": ("default_cores", int),
    "defaultGPUNum": ("default_gpus", int),
    "memoryFactor": ("memory_factor", int),
    "gpuCorePolicy": ("core_policy", str),
    "runtimeClassName": ("runtime_class", str),
    "overwriteEnv": ("overwrite_env", bool),
}
_OF_NODES: Final = (
    "deviceSplitCount",
    "deviceMemoryScaling",
    "deviceCoreScaling",
    "enableNumaTopology",
    "libCudaLogLevel",
    "preConfiguredDeviceMemory",
    "migProfileAllowlist",
    "knownMigGeometries",
    "disableCoreLimit",
)
_USUAL: Final = {
    "resourceCountName": "count",
    "resourceMemoryName": "memory",
    "resourceCoreName": "cores",
}
_KEYS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "cambricon": {key: ("MLU", name) for key, name in _USUAL.items()},
    "hygon": {key: ("DCU", name) for key, name in _USUAL.items()},
    "mthreads": {key: ("Mthreads", name) for key, name in _USUAL.items()},
    "amd": {key: ("AMD", name) for key, name in _USUAL.items()},
    "vastai": {"resourceCountName": ("Vastai", "count")},
    "biren": {"resourceCountName": ("Biren", "count")},
    "awsneuron": {
        "resourceCountName": ("AWSNeuron", "count"),
        "resourceCoreName": ("AWSNeuron", "cores"),
    },
    "metax": {
        "resourceCountName": ("Metax-GPU", "count"),
        "resourceVCountName": ("Metax-SGPU", "count"),
        "resourceVMemoryName": ("Metax-SGPU", "memory"),
        "resourceVCoreName": ("Metax-SGPU", "cores"),
    },
    "enflame": {
        "resourceNameGCU": ("GCU", "count"),
        "resourceNameDRSGCU": ("Enflame", "count"),
        "resourceNameGCUMemory": ("Enflame", "memory"),
        "resourceNameGCUCore": ("Enflame", "cores"),
        "resourceNameVGCU": ("Enflame-vGCU", "count"),
        "resourceNameVGCUPercentage": ("Enflame-vGCU", "percent"),
    },
    "kunlun": {
        "resourceCountName": ("kunlun", "count"),
        "resourceVCountName": ("XPU", "count"),
        "resourceVMemoryName": ("XPU", "memory"),
    },
}
_ALIASES: Final = {"kunlunxin": "kunlun"}
_OLD_KEYS: Final[Mapping[str, Mapping[str, str]]] = {
    # Keys from before a section had two kinds of devices; they named the parts.
    "metax": {
        "resourceCountName": "resourceVCountName",
        "resourceMemoryName": "resourceVMemoryName",
        "resourceCoreName": "resourceVCoreName",
    },
    "enflame": {
        "resourceCountName": "resourceNameVGCU",
        "resourceMemoryPercentageName": "resourceNameVGCUPercentage",
        "resourcePercentageName": "resourceNameVGCUPercentage",
    },
}
_QUIET: Final = ("deviceSplitCount", "defaultMem", "defaultMemory", "defaultCores")
"""Keys of other vendors' sections that their plugins report themselves."""


class _Reading:
    def __init__(self, source: str) -> None:
        self.source = source
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.rows: dict[str, Vendor] = {one.word: one for one in ROWS}

    def mapping(self, where: str, value: object) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return {str(key): one for key, one in value.items()}
        self.problems.append(f"{where}: must be a mapping, got {short(value)}")
        return {}

    def listed(self, where: str, value: object) -> list[Mapping[str, Any]]:
        if not isinstance(value, list):
            self.problems.append(f"{where}: must be a list, got {short(value)}")
            return []
        if len(value) > MOST:
            self.problems.append(f"{where}: has {len(value)} entries; at most {MOST} are read")
        return [self.mapping(f"{where}[{i}]", one) for i, one in enumerate(value[:MOST])]

    def resource(self, where: str, value: object) -> str:
        """A resource name with a domain; empty if none is given."""
        if value in (None, ""):
            return ""
        if isinstance(value, str) and "/" in value and len(value) <= 253:
            return value
        self.problems.append(f"{where}: must be a resource such as a.com/b, got {short(value)}")
        return ""

    def whole(self, where: str, value: object, default: int, least: int = 0) -> int:
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 31:
            return value
        self.problems.append(f"{where}: must be a whole number from {least}, got {short(value)}")
        return default

    def unknown(self, where: str, key: str, known: tuple[str, ...]) -> None:
        self.warnings.append(
            f"{where}.{key}: is not applied: no such key is known here{nearest(key, known)}"
        )


def read_device_config(document: Mapping[str, Any], source: str) -> DeviceConfig:
    """Parse the configuration. Raises ConfigError with all errors."""
    reading = _Reading(source)
    nvidia = Nvidia()
    for section, body in document.items():
        where, name = f"{source}: {section}", _ALIASES.get(str(section), str(section))
        if name == "nvidia":
            nvidia = _nvidia(reading, where, body)
        elif name in _KEYS:
            _plain(reading, where, name, body)
        elif name in _LISTS:
            _LISTS[name](reading, where, body)
        else:
            reading.warnings.append(
                f"{where}: is not applied: no such section is known here"
                f"{nearest(str(section), ('nvidia', *VENDORS))}"
            )
    _check_names(reading)
    if reading.problems:
        raise ConfigError(reading.problems)
    vendors = tuple(reading.rows.values())
    return DeviceConfig(nvidia, vendors, True, tuple(reading.warnings))


def _nvidia(reading: _Reading, where: str, body: object) -> Nvidia:
    values: dict[str, Any] = {}
    for key, value in reading.mapping(where, body).items():
        here = f"{where}.{key}"
        if key in _NVIDIA:
            name, kind = _NVIDIA[key]
            if kind is int:
                values[name] = reading.whole(here, value, 0)
            elif kind is bool:
                if isinstance(value, bool):
                    values[name] = value
                else:
                    reading.problems.append(f"{here}: must be true or false, got {short(value)}")
            elif key == "runtimeClassName" or key == "gpuCorePolicy":
                if not isinstance(value, str):
                    reading.problems.append(f"{here}: must be a text, got {short(value)}")
                elif value:
                    values[name] = value
            elif found := reading.resource(here, value):
                values[name] = found
        elif key not in _OF_NODES:
            reading.unknown(where, key, (*_NVIDIA, *_OF_NODES))
    made = Nvidia(**values)
    if made.core_policy not in POLICIES:
        reading.problems.append(
            f"{where}.gpuCorePolicy: must be one of {', '.join(POLICIES)}, not"
            f" {short(made.core_policy)}"
        )
    if made.memory_factor < 1:
        reading.problems.append(f"{where}.memoryFactor: must be at least 1")
    if made.default_cores > 100:
        reading.problems.append(f"{where}.defaultCores: must be at most 100 percent")
    return made


def _plain(reading: _Reading, where: str, section: str, body: object) -> None:
    known = _KEYS[section]
    given = reading.mapping(where, body)
    old = _OLD_KEYS.get(section, {})
    if any(key in given for key in old if key not in known):
        given = {old.get(key, key): value for key, value in given.items()}
    special = _SPECIAL.get(section, {})
    for key, value in given.items():
        here = f"{where}.{key}"
        if key in known:
            word, name = known[key]
            if found := reading.resource(here, value):
                changed: dict[str, Any] = {name: found}
                reading.rows[word] = replace(reading.rows[word], **changed)
        elif key in special:
            special[key](reading, here, value)
        elif key in _QUIET:
            if value:
                reading.warnings.append(f"{here}: {short(value)} {_OF_THE_PLUGIN}")
        else:
            reading.unknown(where, key, (*known, *special, *_QUIET))


def _factor(word: str) -> Callable[[_Reading, str, object], None]:
    def read(reading: _Reading, where: str, value: object) -> None:
        row = reading.rows[word]
        unit = reading.whole(where, value, 1, least=1)
        reading.rows[word] = replace(row, unit_mib=row.unit_mib * unit)

    return read


def _memory_per_card(reading: _Reading, where: str, value: object) -> None:
    numbers = value if isinstance(value, list) else [value]
    found = [reading.whole(where, one, 96, least=1) for one in numbers]
    if found:
        row = reading.rows["Mthreads"]
        reading.rows["Mthreads"] = replace(row, more={"memory_per_card": tuple(found)})


def _topology(reading: _Reading, where: str, value: object) -> None:
    if not isinstance(value, bool):
        reading.problems.append(f"{where}: must be true or false, got {short(value)}")
    elif not value:
        reading.warnings.append(
            f"{where}: false is not applied: whole cards are always given from one link zone where"
            " there is one"
        )


_SPECIAL: Final[Mapping[str, Mapping[str, Callable[[_Reading, str, object], None]]]] = {
    "hygon": {"memoryFactor": _factor("DCU")},
    "mthreads": {"memoryPerCard": _memory_per_card},
    "metax": {"sgpuTopologyAware": _topology},
}


# -- lists of chips -------------------------------------------------------------------------------

_CHIP_KEYS: Final = (
    "chipName",
    "commonWord",
    "resourceName",
    "resourceCountName",
    "resourceMemoryName",
    "resourceCoreName",
    "memoryAllocatable",
    "memoryCapacity",
    "memoryFactor",
    "aiCore",
    "aiCPU",
    "templates",
    "runtimeClassName",
    "overwriteEnv",
    "superPod",
)
_OF_ALL_CHIPS: Final = (
    "configs",
    "hamiVnpuCore",
    "hamiVnpuMode",
    "enpuPolicy",
    "overwriteEnv",
    "runtimeClassName",
    "vnpuDeviceSplitCount",
)


def _vnpus(reading: _Reading, where: str, body: object) -> None:
    common: Mapping[str, Any] = {}
    if isinstance(body, Mapping):
        common = reading.mapping(where, body)
        for key in common:
            if key not in _OF_ALL_CHIPS:
                reading.unknown(where, key, _OF_ALL_CHIPS)
        mode = common.get("hamiVnpuMode")
        if mode not in (None, "", "template", "hami-core", "hamiCore"):
            reading.problems.append(
                f"{where}.hamiVnpuMode: must be template or hami-core, got {short(mode)}"
            )
        for key in ("enpuPolicy", "vnpuDeviceSplitCount"):
            if common.get(key):
                reading.warnings.append(f"{where}.{key}: {_OF_THE_PLUGIN}")
        where, body = f"{where}.configs", common.get("configs") or []
    entries = reading.listed(where, body)
    _without(reading, "vnpus")
    for i, entry in enumerate(entries):
        at = f"{where}[{i}]"
        for key in entry:
            if key not in _CHIP_KEYS:
                reading.unknown(at, key, _CHIP_KEYS)
        word = entry.get("commonWord")
        if not isinstance(word, str) or not word:
            reading.problems.append(f"{at}.commonWord: must be a name, got {short(word)}")
            continue
        _chip(reading, at, word, {**common, **entry})


def _chip(reading: _Reading, at: str, word: str, entry: Mapping[str, Any]) -> None:
    capacity = reading.whole(f"{at}.memoryCapacity", entry.get("memoryCapacity"), 0)
    allocatable = reading.whole(f"{at}.memoryAllocatable", entry.get("memoryAllocatable"), capacity)
    if not allocatable:
        reading.problems.append(f"{at}.memoryAllocatable: is needed, in MiB")
    templates = []
    given = entry.get("templates") or []
    for i, one in enumerate(reading.listed(f"{at}.templates", given)):
        here = f"{at}.templates[{i}]"
        if not isinstance(one.get("name"), str) or not one["name"]:
            reading.problems.append(f"{here}.name: must be a name, got {short(one.get('name'))}")
            continue
        templates.append(
            Template(
                one["name"],
                reading.whole(f"{here}.memory", one.get("memory"), 0, least=1),
                reading.whole(f"{here}.aiCore", one.get("aiCore"), 0),
                reading.whole(f"{here}.aiCPU", one.get("aiCPU"), 0),
            )
        )
    chip = Chip(
        allocatable,
        max(capacity, allocatable),
        tuple(sorted(templates, key=lambda one: one.memory_mib)),
        str(entry.get("runtimeClassName") or ""),
        entry.get("overwriteEnv") in (True, "true"),
    )
    resource = reading.resource(
        f"{at}.resourceName", entry.get("resourceName") or entry.get("resourceCountName")
    )
    row = ascend(
        word,
        chip,
        resource,
        reading.resource(f"{at}.resourceMemoryName", entry.get("resourceMemoryName")),
        reading.resource(f"{at}.resourceCoreName", entry.get("resourceCoreName")),
    )
    unit = max(1, reading.whole(f"{at}.memoryFactor", entry.get("memoryFactor"), 1))
    reading.rows[word] = replace(row, unit_mib=unit)


def _one_chip(reading: _Reading, where: str, body: object) -> None:
    """Parse a section that has a single chip, identified by its resource name."""
    given = reading.mapping(where, body)
    resource = reading.resource(f"{where}.resourceCountName", given.get("resourceCountName"))
    word = resource.rpartition("/")[2]
    if word not in CHIPS:
        if resource:
            reading.problems.append(
                f"{where}.resourceCountName: unknown chip {short(resource)}"
                f"{nearest(word, CHIPS)}; name it in vnpus, with its templates"
            )
        return
    memory = reading.resource(f"{where}.resourceMemoryName", given.get("resourceMemoryName"))
    cores = reading.resource(f"{where}.resourceCoreName", given.get("resourceCoreName"))
    reading.rows[word] = ascend(word, CHIPS[word], resource, memory, cores)
    for key, value in given.items():
        if key in _QUIET:
            if value:
                reading.warnings.append(f"{where}.{key}: {short(value)} {_OF_THE_PLUGIN}")
        elif key not in _USUAL:
            reading.unknown(where, key, (*_USUAL, *_QUIET))


def _iluvatars(reading: _Reading, where: str, body: object) -> None:
    entries = [body] if isinstance(body, Mapping) else body
    found = reading.listed(where, entries)
    _without(reading, "iluvatars")
    for i, entry in enumerate(found):
        at = f"{where}[{i}]"
        word = entry.get("commonWord") or entry.get("chipName")
        if not isinstance(word, str) or not word:
            reading.problems.append(f"{at}.commonWord: must be a name, got {short(word)}")
            continue
        for key in entry:
            if key not in (*_USUAL, "chipName", "commonWord", *_QUIET):
                reading.unknown(at, key, (*_USUAL, "chipName", "commonWord"))
        named = [reading.resource(f"{at}.{key}", entry.get(key)) for key in _USUAL]
        reading.rows[word] = iluvatar(word, *named)


_OTHER_KEYS: Final[Mapping[str, str]] = {
    **_USUAL,
    "registerAnnotation": "register",
    "handshakeAnnotation": "handshake",
    "toAllocateAnnotation": "to_allocate",
    "allocatedAnnotation": "allocated",
    "useUUIDAnnotation": "use_ids",
    "noUseUUIDAnnotation": "nouse_ids",
    "useTypeAnnotation": "use_types",
    "noUseTypeAnnotation": "nouse_types",
}


def _others(reading: _Reading, where: str, body: object) -> None:
    """Parse our extension of the file: any vendor whose plugin speaks the protocol without special
    rules."""
    for i, entry in enumerate(reading.listed(where, body)):
        at = f"{where}[{i}]"
        word = entry.get("commonWord")
        if not isinstance(word, str) or not word or set(word) & set(",:;"):
            reading.problems.append(f"{at}.commonWord: must be a name, got {short(word)}")
            continue
        values: dict[str, Any] = {
            name: reading.resource(f"{at}.{key}", entry.get(key))
            for key, name in _OTHER_KEYS.items()
        }
        values |= {
            "register": values["register"] or f"hami.io/node-{word}-register",
            "to_allocate": values["to_allocate"] or f"hami.io/{word}-devices-to-allocate",
            "allocated": values["allocated"] or f"hami.io/{word}-devices-allocated",
        }
        for key in entry:
            if key not in (*_OTHER_KEYS, "commonWord", "title", "memoryFactor"):
                reading.unknown(at, key, (*_OTHER_KEYS, "commonWord", "title", "memoryFactor"))
        if not values["count"]:
            reading.problems.append(f"{at}.resourceCountName: is needed")
            continue
        unit = reading.whole(f"{at}.memoryFactor", entry.get("memoryFactor"), 1, least=1)
        title = str(entry.get("title") or word)
        reading.rows[word] = Vendor(
            section="others", title=title, word=word, unit_mib=unit, **values
        )


_LISTS: Final[Mapping[str, Callable[[_Reading, str, object], None]]] = {
    "vnpus": _vnpus,
    "ascend": _one_chip,
    "iluvatars": _iluvatars,
    "iluvatar": _iluvatars,
    "others": _others,
}


def _without(reading: _Reading, section: str) -> None:
    """Remove the built-in chips of a section, which the file's list replaces."""
    reading.rows = {word: one for word, one in reading.rows.items() if one.section != section}


def _check_names(reading: _Reading) -> None:
    seen: dict[str, str] = {}
    for row in reading.rows.values():
        for resource in row.resources:
            other = seen.setdefault(resource, row.title)
            if other != row.title:
                reading.problems.append(
                    f"{reading.source}: {resource} is a resource of {other} and of {row.title}"
                )
