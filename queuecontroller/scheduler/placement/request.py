"""The GPU request of one pod, with HAMi's names for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from queuecontroller.scheduler.placement.capacity import GpuCapacity
from sluicecommon.hami.names import (
    GPU_POLICY,
    HAMI_CORE,
    MIG,
    MODES,
    NODE_POLICY,
    NOUSE_INDEX,
    NOUSE_TYPE,
    NOUSE_UUID,
    NUMA_BIND,
    USE_INDEX,
    USE_TYPE,
    USE_UUID,
    VGPU_MODE,
    WEIGHTS,
)
from sluicecommon.hami.weights import weights
from sluicecommon.pod_annotations import share_policy

WHOLE_PPM: Final = 1_000_000


class Policy(StrEnum):
    BINPACK = "binpack"
    """The fullest that fits, so that whole GPUs and nodes stay free."""
    SPREAD = "spread"
    """The emptiest."""


BY_TOPOLOGY: Final = "topology"
"""A policy for nodes, not HAMi's: schedulers prefer nodes on which the pod's GPUs are linked or of
one NUMA node. The queue takes a node by its default policy."""
TOPOLOGY: Final = "topology-aware"
MUTEX: Final = "mutex"
NUMA: Final = "numa"
GPU_POLICIES: Final = (*Policy, TOPOLOGY, MUTEX, NUMA)
"""HAMi's policies; several may be given, separated by commas."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """GPU request of one pod. At most one of the two fields for memory is given; neither means the
    whole memory."""

    gpus: int = 1
    memory_bytes: int | None = None
    memory_ppm: int | None = None
    """Memory in ppm of the GPU that is chosen."""
    share_ppm: int = WHOLE_PPM
    hard: bool = True
    """True if the share is guaranteed; else it is a weight, and weights may exceed the GPU in sum.
    """
    exclusive: bool = False
    """True if the GPUs may hold nothing else."""
    mig: tuple[str, ...] = ()
    """The profile of each requested MIG instance, on GPUs in MIG mode, instead of shares; memory
    and time are then the profile's."""
    gpu_uuids: tuple[str, ...] = ()
    """UUIDs of the only GPUs allowed."""
    use_types: tuple[str, ...] = ()
    """Parts of the model's name in any case, of which one must match."""
    nouse_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    use_indexes: tuple[int, ...] = ()
    """Allowed indexes of GPUs on their node, as the driver counts them."""
    nouse_indexes: tuple[int, ...] = ()
    modes: tuple[str, ...] = ()
    """Modes out of MODES that the GPU may be in; empty: any."""
    weights: tuple[int, ...] = ()
    """Weights of slots, time and memory for the fullest or emptiest GPU, in the order of
    `weights.WEIGHED`; empty: memory first, then time."""
    one_numa_node: bool = False
    node_policy: Policy = Policy.BINPACK
    gpu_policy: Policy = Policy.BINPACK
    by_links: bool = False
    """topology-aware: the best linked GPUs, and a single one from the worst linked."""
    idle_only: bool = False
    """mutex: GPUs that are idle when they are chosen; other pods may be added later."""
    by_numa: bool = False
    """numa: GPUs of one NUMA node before linked ones."""

    @property
    def count(self) -> int:
        """Number of GPUs or MIG instances."""
        return len(self.mig) or len(self.gpu_uuids) or self.gpus

    @property
    def picks(self) -> tuple[tuple[object, ...], ...]:
        """Everything that decides which GPUs are suitable, independent of what is free."""
        return (
            self.use_types,
            self.nouse_types,
            self.gpu_uuids,
            self.use_uuids,
            self.nouse_uuids,
            self.use_indexes,
            self.nouse_indexes,
            self.modes,
        )

    def memory_on(self, gpu: GpuCapacity) -> int:
        if self.memory_bytes is not None:
            return self.memory_bytes
        part = WHOLE_PPM if self.memory_ppm is None else self.memory_ppm
        return gpu.memory_bytes * part // WHOLE_PPM

    def least_bytes(self, kinds: Iterable[tuple[str, int]]) -> int | None:
        """The least memory the request takes of any GPU, given `kinds`: models and memory of the
        GPUs. None if no model is suitable."""
        wanted = [memory for model, memory in kinds if self.wants_type(model)]
        if not wanted:
            return None
        if self.memory_bytes is not None:
            return self.memory_bytes
        part = WHOLE_PPM if self.memory_ppm is None else self.memory_ppm
        return min(wanted) * part // WHOLE_PPM

    def wants_type(self, model: str) -> bool:
        low = model.lower()
        return (
            not self.use_types or any(part.lower() in low for part in self.use_types)
        ) and not any(part.lower() in low for part in self.nouse_types)

    def wants(self, gpu: GpuCapacity) -> str | None:
        """Reason why this GPU is unsuitable for the pod in any state; None: it is suitable."""
        if self.gpu_uuids and gpu.uuid not in self.gpu_uuids:
            return "is not one of the requested GPUs"
        if self.use_uuids and gpu.uuid not in self.use_uuids:
            return f"is not in {USE_UUID}"
        if gpu.uuid in self.nouse_uuids:
            return f"is in {NOUSE_UUID}"
        if self.use_indexes and gpu.index not in self.use_indexes:
            return f"is not in {USE_INDEX}"
        if gpu.index in self.nouse_indexes:
            return f"is in {NOUSE_INDEX}"
        if self.modes and mode_of(gpu) not in self.modes:
            return f"is in mode {mode_of(gpu)}, which is not in {VGPU_MODE}"
        model = gpu.type.lower()
        if self.use_types and not any(part.lower() in model for part in self.use_types):
            return f"is a {gpu.type}, which is not in {USE_TYPE}"
        if any(part.lower() in model for part in self.nouse_types):
            return f"is a {gpu.type}, which is in {NOUSE_TYPE}"
        return None

    def describe(self) -> str:
        if self.mig:
            counts = Counter(self.mig)
            return " and ".join(
                f"{counts[name]} MIG instance{'s' if counts[name] > 1 else ''} {name}"
                for name in sorted(counts)
            )
        if self.memory_bytes is not None:
            memory = f"{self.memory_bytes >> 20} MiB"
        else:
            part = WHOLE_PPM if self.memory_ppm is None else self.memory_ppm
            memory = f"{part / 10_000:g} % of the memory"
        plural = "s" if self.count > 1 else ""
        alone = ", exclusive" if self.exclusive else ""
        return (
            f"{self.count} GPU{plural} with {memory} and {self.share_ppm / 10_000:g} % of the"
            f" time{alone}"
        )


def mode_of(gpu: GpuCapacity) -> str:
    """The mode of a GPU, one of MODES."""
    return MIG if gpu.mig_enabled else HAMI_CORE


class AskError(ValueError):
    """An impossible GPU request; the text names it and the way to correct it."""


class AnnotationError(AskError):
    """An invalid annotation; the text names the annotation and its valid values."""


def annotated(annotations: Mapping[str, str]) -> dict[str, object]:
    """Fields of GpuRequest that annotations set, apart from the share's policy, which is only
    checked. Raises AnnotationError."""
    try:
        share_policy(annotations)
    except ValueError as error:
        raise AnnotationError(str(error)) from None

    def listed(name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in annotations.get(name, "").split(",") if part.strip())

    fields: dict[str, object] = {
        "use_types": listed(USE_TYPE),
        "nouse_types": listed(NOUSE_TYPE),
        "use_uuids": listed(USE_UUID),
        "nouse_uuids": listed(NOUSE_UUID),
        "use_indexes": _indexes(USE_INDEX, listed(USE_INDEX)),
        "nouse_indexes": _indexes(NOUSE_INDEX, listed(NOUSE_INDEX)),
        "modes": _modes(listed(VGPU_MODE)),
    }
    if annotations.get(WEIGHTS, "").strip():
        try:
            fields["weights"] = weights(annotations[WEIGHTS])
        except ValueError as error:
            raise AnnotationError(f"{WEIGHTS}: {error}") from None
    bind = annotations.get(NUMA_BIND, "false").strip().lower()
    if bind not in ("true", "false"):
        raise AnnotationError(f"{NUMA_BIND}: must be true or false, got {bind!r}")
    fields["one_numa_node"] = bind == "true"
    text = annotations.get(NODE_POLICY, "").strip()
    if text and text != BY_TOPOLOGY:
        try:
            fields["node_policy"] = Policy(text)
        except ValueError:
            allowed = " or ".join(Policy)
            raise AnnotationError(f"{NODE_POLICY}: must be {allowed}, got {text!r}") from None
    return fields | gpu_policies(GPU_POLICY, listed(GPU_POLICY))


def _indexes(what: str, parts: Iterable[str]) -> tuple[int, ...]:
    found = []
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) < 5):
            raise AnnotationError(
                f"{what}: expected the index of a GPU on its node, got {part[:40]!r}"
            )
        found.append(int(part))
    return tuple(found)


def _modes(parts: tuple[str, ...]) -> tuple[str, ...]:
    for one in parts:
        if one not in MODES:
            raise AnnotationError(f"{VGPU_MODE}: must be one of {', '.join(MODES)}, got {one!r}")
    if parts == ("mps",):
        raise AnnotationError(
            f"{VGPU_MODE}: mps is not supported; hami-core shares without a server"
        )
    return parts


def gpu_policies(what: str, names: Iterable[str]) -> dict[str, object]:
    """Fields of GpuRequest for HAMi's policies. Raises AnnotationError, with `what` in its text."""
    fields: dict[str, object] = {}
    for name in names:
        if name in tuple(Policy):
            fields["gpu_policy"] = Policy(name)
        elif name in GPU_POLICIES:
            fields[{TOPOLOGY: "by_links", MUTEX: "idle_only", NUMA: "by_numa"}[name]] = True
        else:
            raise AnnotationError(f"{what}: must be one of {', '.join(GPU_POLICIES)}, got {name!r}")
    return fields
