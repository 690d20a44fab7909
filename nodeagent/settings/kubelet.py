"""The section [kubelet]: what this node offers to Kubernetes, merged from several sources.

Later ones win: our defaults, HAMi's device-config.yaml, HAMi's entry for this node, [kubelet],
[kubelet.nodes.NAME]. Each value remembers its source, because that is the first question when a
node behaves unlike its neighbours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from sluicecommon.hami.names import GPU, GPU_CORES, GPU_MEMORY, GPU_MEMORY_PERCENT, PRIORITY
from sluicecommon.settings import (
    absolute_path,
    absolute_paths,
    check_table,
    choice,
    choices,
    flag,
    number,
    text,
)

DEFAULTS: Final = "default"
"""Source of a value that is not configured."""
RESOURCE_KEYS: Final = (
    "resource_count",
    "resource_memory",
    "resource_memory_percentage",
    "resource_cores",
    "resource_priority",
)
_NEUTRAL: Final[Mapping[str, object]] = {"slots_per_gpu": 0, "card_slots": ()}
"""Values that say nothing, of keys for which it is not 1."""
_QUALIFIED: Final = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_GPU_UUID: Final = re.compile(r"(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

_CARD_SLOTS: Final = re.compile(
    r"([0-9]{1,3}|GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})"
    r"=([1-9]|[1-9][0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-6])"
)


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """[kubelet]: what this node offers to Kubernetes. The last of these wins: the defaults below,
    HAMi's device-config.yaml, HAMi's entry for this node, `[kubelet]`, `[kubelet.nodes.NAME]` (the
    same keys, for the node of that name: one file for a whole cluster). `sluice config check`
    prints the values of a node, their sources, and what has no effect. HAMi's keys, overcommit and
    the modes: docs/hami.md."""

    enabled: bool = flag(False)
    """Serve the kubelet."""
    door: str = choice("device-plugin", "device-plugin", "dra")
    """How this node allocates GPUs. device-plugin: as the resource resource_count; dra: to
    ResourceClaims, from ResourceSlices (driver sluice.dev; Kubernetes 1.34, shares of a GPU from
    1.36; needs the API server). A card with work that came the other way is offered by neither
    until that work has ended."""
    dra_sick: str = choice("evict", "evict", "keep")
    """Pods with a claim on an unhealthy or lost GPU. evict: Kubernetes deletes them (a NoExecute
    taint, which a claim may tolerate); keep: no new ones come."""
    dra_status_s: float = number(30.0, 0.0, 3600.0)
    """Interval at which the use in a claim's status is corrected if wrong by more than a point. 0:
    none is written."""
    directory: str = absolute_path("/var/lib/kubelet")
    """The kubelet's --root-dir. k0s and microk8s have another."""
    hami: tuple[str, ...] = absolute_paths()
    """HAMi's ConfigMaps hami-scheduler-device and hami-device-plugin, unmodified: as a manifest or
    as the bare device-config.yaml and config.json."""
    mode: str = choice("share", "share", "exclusive", "mig", "mps")
    """share: grants share a GPU; exclusive: one slot per GPU, the whole of it; mig: instances, each
    whole to one container; mps: refused."""
    mig_strategy: str = choice("none", "none", "single", "mixed")
    """Names of MIG instances, with mode mig. single: resource_count, if all have one profile;
    mixed: DOMAIN/mig-PROFILE, beside whole cards, which are shared as usual."""
    mig_geometry: str = choice("fixed", "fixed", "demand")
    """Partitioning of cards, with mode mig. fixed: by an operator, with `sluice mig set`; demand:
    an instance is created when a pod or claim requests its profile, and kept until another needs
    its room. With door device-plugin demand needs mig_strategy mixed."""
    strategy: str = choice("cdi-cri", "cdi-cri", "cdi-annotations", "envvar")
    """How the runtime gets a container's edits. cdi-cri: containerd 1.7, CRI-O 1.28 and later;
    cdi-annotations: earlier ones; envvar: without CDI."""
    cdi_dir: str = absolute_path("/var/run/cdi")
    """Directory of dynamic CDI files; ours are written there, the driver's are read there and in
    /etc/cdi."""
    reconcile_s: float = number(10.0, 0.1, 600.0)
    """Interval of comparison with the kubelet's pods. A share is free after the second one that
    lacks its pod."""
    slots_per_gpu: int = number(0, 0, 256)
    """Device ids per GPU: how many containers may share it. 0: grants.slots_per_gpu."""
    card_slots: tuple[str, ...] = ()
    """Device ids of single GPUs where they differ, as UUID=NUMBER or INDEX=NUMBER, such as 0=1 for
    one container at a time on GPU 0. MIG instances always have one."""
    limits: tuple[str, ...] = choices(
        ("queue", "pod", "defaults"),
        "queue",
        "admission",
        "placement",
        "pod",
        "defaults",
        live=True,
    )
    """Sources of a container's limits, in order. queue: a queue controller with its own database;
    admission: none, but in mode kubernetes queued pods wait until their Workload is admitted; pod:
    the pod's requests (from pod_sources); placement: the same, on the GPUs that a controller in
    mode kubernetes wrote to the pod; defaults: those below."""
    pod_sources: tuple[str, ...] = choices(("api", "kubelet"), "api", "kubelet")
    """Sources of a pod's requests and owners, in order. api: a watch of this node's pods; kubelet:
    its Pods API (feature gate PodsAPI), which lacks the Jobs and Deployments above a pod."""
    kubeconfig: str = absolute_path("")
    """Access to the API server; on a node /etc/kubernetes/kubelet.conf is enough. Empty: the
    service account of the daemon's pod, or none outside of a pod."""
    advertise_sums: bool = flag(True)
    """Write the sums over this node's GPUs into its Node object, as resource_memory,
    resource_memory_percentage, resource_cores and resource_priority, so that any scheduler can
    place pods that request them. false: they are removed. Needs the API server."""
    resource_count: str = text(GPU)
    """The resource that this node advertises: the number of GPUs of a container."""
    resource_memory: str = text(GPU_MEMORY, live=True)
    """A pod's request for memory on each GPU, in units of memory_factor MiB."""
    resource_memory_percentage: str = text(GPU_MEMORY_PERCENT, live=True)
    """A pod's request for memory on each GPU, in percent."""
    resource_cores: str = text(GPU_CORES, live=True)
    """A pod's request for a share of each GPU's time, in percent."""
    resource_priority: str = text(PRIORITY, live=True)
    """A pod's request for HAMi's priority: 0 goes before 1 and before none."""
    memory_factor: int = number(1, 1, 1_048_576, live=True)
    """MiB in one unit of resource_memory."""
    default_memory_mib: int = number(0, 0, 1_000_000_000, live=True)
    """Memory on each GPU of a container without a request. 0: all of it."""
    max_priority: int = number(0, -1000, 1000, live=True)
    """Highest priority of a pod, or of a claim whose DeviceClass sets none. 0: users may only lower
    theirs."""
    trusted_groups: bool = flag(False, live=True)
    """Permit pods the annotation sluice.dev/trusted-group: grants of one namespace under one MPS
    server, docs/node/trusted-groups.md."""
    default_cores_percent: int = number(0, 0, 100, live=True)
    """Share of time of a container without a request. 0: no cap while alone, else the weight of one
    core; 100: an exclusive GPU."""
    cores_policy: str = choice("hard", "hard", "elastic", live=True)
    """hard: a share is a cap, even alone; elastic: a weight among active grants (HAMi's
    gpuCorePolicy disable)."""
    resize: str = choice("down", "off", "down", "on", live=True)
    """Effect of the annotation resize.sluice.dev/CONTAINER of a running pod. down: up to its
    requests, for which quota was counted; on: above that, too, if the quota counts the annotation.
    Needs the API server."""
    memory_scaling: float = number(1.0, 0.1, 10.0)
    """Memory offered per byte of a card's. Over 1 is overcommit: docs/hami.md."""
    exclude_uuids: tuple[str, ...] = field(default=(), metadata={"live": True})
    """GPUs that are not offered, by UUID."""
    exclude_indexes: tuple[int, ...] = field(default=(), metadata={"live": True})
    """GPUs that are not offered, by NVML index, which a reboot can change: prefer the UUID."""
    numa_topology: bool = flag(True, live=True)
    """Report each GPU's NUMA node to the kubelet, for topologyManagerPolicy."""

    @property
    def slots_of_cards(self) -> Mapping[str, int]:
        """`card_slots` by UUID or NVML index."""
        pairs = (one.partition("=") for one in self.card_slots)
        return {gpu: int(number) for gpu, _, number in pairs}

    @property
    def makes_instances(self) -> bool:
        """True if MIG instances are created on demand."""
        return self.enabled and self.mode == "mig" and self.mig_geometry == "demand"


@dataclass(frozen=True, slots=True)
class KubeletSection:
    """The contents of [kubelet] in the configuration file, checked key by key."""

    values: Mapping[str, Any] = field(default_factory=dict)
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """[kubelet.nodes.NAME]: the same keys for one node, so that one file serves a cluster."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Values of one source; keys and types are KubeletConfig's."""

    source: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Effective:
    """The values in force on this node."""

    config: KubeletConfig
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source of each key; DEFAULTS if it is not configured."""
    warnings: tuple[str, ...] = ()
    """Requested values that have no effect, one line per key."""
    problems: tuple[str, ...] = ()
    """Reasons why the daemon would refuse to serve the kubelet, one line per key."""


def parse_section(table: Mapping[str, object], problems: list[str]) -> KubeletSection:
    """Read the TOML table `kubelet`."""
    own = {key: value for key, value in table.items() if key != "nodes"}
    values = check_table(KubeletConfig, "kubelet", own, problems)
    nodes: dict[str, Mapping[str, Any]] = {}
    named = table.get("nodes", {})
    if not isinstance(named, Mapping):
        problems.append("kubelet.nodes: must be sections, [kubelet.nodes.NAME]")
        named = {}
    for name, one in named.items():
        where = f"kubelet.nodes.{name}"
        if not isinstance(one, Mapping):
            problems.append(f"{where}: must be a section, [{where}]")
            continue
        if "hami" in one:
            problems.append(
                f"{where}.hami: belongs into [kubelet]; HAMi's files have an entry per node"
            )
        rest = {key: value for key, value in one.items() if key != "hami"}
        nodes[str(name)] = check_table(KubeletConfig, where, rest, problems)
    return KubeletSection(values, nodes)


def effective(
    section: KubeletSection,
    hami: Sequence[Layer],
    node: str,
    slots_per_gpu: int,
    warnings: Iterable[str] = (),
) -> Effective:
    """Merge the sources: `hami` in the order of increasing weight, then the section.
    `slots_per_gpu` is that of [grants]."""
    layers = [*hami, Layer("[kubelet]", section.values)]
    if node in section.nodes:
        layers.append(Layer(f"[kubelet.nodes.{node}]", section.nodes[node]))
    values: dict[str, Any] = {}
    sources = {one.name: DEFAULTS for one in fields(KubeletConfig)}
    for layer in layers:
        for key, value in layer.values.items():
            values[key] = value
            sources[key] = layer.source
    config = KubeletConfig(**values)
    problems = _problems(config, sources)
    found = [*warnings, *_warnings(config, sources)]
    if not config.slots_per_gpu:
        config = replace(config, slots_per_gpu=slots_per_gpu)
        sources["slots_per_gpu"] = "grants.slots_per_gpu"
    if config.mode == "exclusive":
        config = replace(config, slots_per_gpu=1, memory_scaling=1.0, card_slots=())
        sources["slots_per_gpu"] = sources["memory_scaling"] = "mode = exclusive"
    return Effective(config, sources, tuple(found), tuple(problems))


def _problems(config: KubeletConfig, sources: Mapping[str, str]) -> list[str]:
    def shown(key: str) -> str:
        return f"kubelet.{key}" + ("" if sources[key] == DEFAULTS else f" (by {sources[key]})")

    problems = []
    if config.mode == "mps":
        problems.append(
            f"{shown('mode')}: mps is not supported yet; share has memory caps and shares of time"
            " without an MPS server, exclusive gives whole GPUs"
        )
    if config.makes_instances and config.mig_strategy == "single":
        problems.append(
            f"{shown('mig_strategy')}: mig_geometry demand has a resource for each profile: write"
            " mixed"
        )
    if config.makes_instances and config.strategy == "envvar":
        problems.append(
            f"{shown('strategy')}: mig_geometry demand needs CDI, by cdi-cri or cdi-annotations:"
            " envvar names the instance before it is created"
        )
    if config.mode == "mig" and config.mig_strategy == "none":
        problems.append(
            f"{shown('mig_strategy')}: mode mig needs single (all cards with instances of one"
            " profile, under resource_count) or mixed (a resource for each profile)"
        )
    if config.door == "dra" and config.strategy == "envvar":
        problems.append(
            f"{shown('strategy')}: door dra needs CDI, by cdi-cri or cdi-annotations: envvar cannot"
            " describe a claim's containers"
        )
    if not config.limits:
        problems.append(f"{shown('limits')}: is empty, so no container could ever start")
    seen: dict[str, str] = {}
    for key in RESOURCE_KEYS:
        name = getattr(config, key)
        why = _resource_name_problem(name)
        if why is None and name in seen:
            why = f"{name!r} is {seen[name]} already"
        if why is not None:
            problems.append(f"{shown(key)}: {why}")
        seen.setdefault(name, key)
    for gpu, count in Counter(one.partition("=")[0] for one in config.card_slots).items():
        if count > 1:
            problems.append(f"{shown('card_slots')}: {gpu} is there {count} times")
    for one in config.card_slots:
        if not _CARD_SLOTS.fullmatch(one):
            problems.append(
                f"{shown('card_slots')}: {one!r} is not UUID=NUMBER or INDEX=NUMBER, 1 to 256"
            )
    for uuid in config.exclude_uuids:
        if not _GPU_UUID.fullmatch(uuid):
            problems.append(
                f"{shown('exclude_uuids')}: {uuid!r} is not GPU-<uuid> in lower case, as"
                " `nvidia-smi -L` prints it"
            )
    return problems


def _resource_name_problem(name: str) -> str | None:
    """Check the kubelet's own rules for extended resources."""
    domain = name.partition("/")[0]
    if not _QUALIFIED.fullmatch(name):
        return f"{name!r} is not DOMAIN/NAME, as in nvidia.com/gpu"
    if domain == "kubernetes.io" or domain.endswith(".kubernetes.io"):
        return f"{name!r}: kubernetes.io belongs to Kubernetes"
    if domain.startswith("requests."):
        return f"{name!r}: requests. belongs to quotas"
    return None


def _warnings(config: KubeletConfig, sources: Mapping[str, str]) -> list[str]:
    found = []
    if config.memory_scaling > 1 and config.mode == "share":
        found.append(
            f"kubelet.memory_scaling (by {sources['memory_scaling']}): {config.memory_scaling:g}"
            " promises more memory than the cards have; when a card is full, allocations fail with"
            " out of memory although the container is within its limit, and nothing is moved to"
            " the host's memory"
        )
    if config.mode == "exclusive":
        for key in ("slots_per_gpu", "card_slots", "memory_scaling"):
            if getattr(config, key) not in (_NEUTRAL.get(key, 1), 1):
                found.append(
                    f"kubelet.{key} (by {sources[key]}): has no effect with mode exclusive, which"
                    " gives whole GPUs"
                )
    if config.mig_strategy != "none" and config.mode != "mig":
        found.append(
            f"kubelet.mig_strategy (by {sources['mig_strategy']}): has no effect with mode"
            f" {config.mode}"
        )
    if config.mig_geometry != "fixed" and config.mode != "mig":
        found.append(
            f"kubelet.mig_geometry (by {sources['mig_geometry']}): has no effect with mode"
            f" {config.mode}"
        )
    return found
