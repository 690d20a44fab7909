"""A pod's request for parts of GPUs in KAI's and Run:ai's annotations.

Two forms: for the pod (`gpu-fraction`, `gpu-memory`), and since KAI 0.18 for one container by name
(`nvidia.com/container.NAME.gpu-memory.request` and `.limit`, Kubernetes quantities). In both,
`gpu-fraction-num-devices` GPUs are taken, each with so much. Source: docs/gpu-sharing of
KAI-Scheduler, 0.18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

from sluicecommon.hami.names import GPU, GPU_MEMORY, GPU_MEMORY_PERCENT
from sluicecommon.kubernetes.quantity import MAX_GPU_UNITS, QuantityError, exact_value
from sluicecommon.pod_annotations import MEMORY as MIB_WORD
from sluicecommon.pod_annotations import PERCENT as PERCENT_WORD
from sluicecommon.pod_annotations import REQUEST_PREFIX
from sluicecommon.reader import shown

FRACTION: Final = "gpu-fraction"
FRACTION_MEMORY: Final = "gpu-memory"
"""MiB."""
FRACTION_DEVICES: Final = "gpu-fraction-num-devices"
FRACTION_CONTAINER: Final = "gpu-fraction-container-name"
FRACTIONS: Final = (FRACTION, FRACTION_MEMORY, FRACTION_DEVICES, FRACTION_CONTAINER)
PER_CONTAINER: Final = "nvidia.com/container."
"""Followed by a container's name, a dot, and one of the next four."""
REQUEST: Final = "gpu-memory.request"
LIMIT: Final = "gpu-memory.limit"
MODE: Final = "gpu-compute.mode"
ASSIGNED: Final = "gpus.devices"
"""Written by KAI's binder."""
PORTIONS: Final = "kai.scheduler/container."
PORTION_LIMIT: Final = "gpu-memory.portion.limit"
SHARING_MODE: Final = "kai.scheduler/gpu-compute-sharing-mode"
TIME_SLICING: Final = "time-slicing"
SM_SHARING: Final = "sm-sharing"

MAX_DEVICES: Final = 64
MAX_SHOWN: Final = 4
"""Annotations that a message names."""
_LONGEST_KEY: Final = 317
_MIB: Final = 1 << 20


class FractionError(ValueError):
    """The annotations cannot be honoured; the text begins with the annotation's name."""


@dataclass(frozen=True, slots=True)
class Fraction:
    """Parts of GPUs for one container. Either `percent` or `mib` is given."""

    key: str
    """The annotation that asks for it."""
    container: str
    """Empty: the first one, where the containers' names are unknown."""
    gpus: int = 1
    percent: int | None = None
    """Percent of each GPU's memory."""
    mib: int | None = None
    """MiB on each GPU."""
    guaranteed: int | None = None
    """The guaranteed part, in the same unit; None: all of it."""

    def request_annotation(self, memory_factor: int = 1) -> tuple[str, str] | None:
        """Name and value of Sluice's annotation for the guaranteed part, in units of
        `memory_factor` MiB; None: all of it is."""
        if self.guaranteed is None:
            return None
        name = f"{REQUEST_PREFIX}{self.container}"
        if self.percent is not None:
            return name, f"{PERCENT_WORD}={self.guaranteed}"
        return name, f"{MIB_WORD}={-(-self.guaranteed // memory_factor)}"

    @property
    def instead(self) -> str:
        """The resources to write instead, where KAI's annotations are not read."""
        memory = (
            f"{GPU_MEMORY_PERCENT}: {self.percent}"
            if self.percent is not None
            else f"{GPU_MEMORY}: {self.mib}"
        )
        whose = f"container {self.container}" if self.container else "the first container"
        text = f"{GPU}: {self.gpus} and {memory} in the limits of {whose}"
        own = self.request_annotation()
        return text if own is None else f'{text}, and the annotation {own[0]}: "{own[1]}"'


def asking(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Annotations by which the pod requests parts of GPUs, at most MAX_SHOWN of them."""
    found = [key for key in (FRACTION, FRACTION_MEMORY) if key in annotations]
    for _, name, what in _per_container(annotations):
        if what not in (MODE, ASSIGNED):
            found.append(name)
        if len(found) >= MAX_SHOWN:
            break
    return tuple(found)


def is_assigned(key: str) -> bool:
    """True for the annotation in which KAI's binder records a container's GPUs."""
    return key.startswith(PER_CONTAINER) and key.endswith(f".{ASSIGNED}")


def read_fraction(
    annotations: Mapping[str, str], containers: Sequence[str] | None
) -> Fraction | None:
    """The request of a pod with these containers (None: they are unknown); without a name it is
    the first one's. None if there is none. Raises FractionError."""
    found = _of_container(annotations) or _of_pod(annotations, containers or ("",))
    if found is None:
        for key in (FRACTION_DEVICES, FRACTION_CONTAINER):
            if key in annotations:
                raise FractionError(f"{key}: means nothing without {FRACTION} or {FRACTION_MEMORY}")
        return None
    if containers is not None and found.container not in containers:
        known = ", ".join(containers[:MAX_SHOWN])
        named = FRACTION_CONTAINER if found.key in (FRACTION, FRACTION_MEMORY) else found.key
        raise FractionError(f"{named}: must be one of {known}, got {shown(found.container)}")
    gpus = _whole(FRACTION_DEVICES, annotations.get(FRACTION_DEVICES, "1"), MAX_DEVICES)
    return replace(found, gpus=gpus)


def check_sharing_mode(annotations: Mapping[str, str]) -> None:
    """Check how the pod wants to share a GPU's time. Raises FractionError."""
    named = [(SHARING_MODE, annotations[SHARING_MODE])] if SHARING_MODE in annotations else []
    per_container = _per_container(annotations)
    named += [(key, annotations[key]) for _, key, what in per_container if what == MODE]
    for key, text in named:
        if text.strip() == SM_SHARING:
            raise FractionError(
                f"{key}: {SM_SHARING} runs kernels of several pods at once by NVIDIA's MPS, which a"
                f" share does not: write {TIME_SLICING}; pods of one namespace run at once with"
                " sluice.dev/trusted-group, where the node permits it"
            )
        if text.strip() != TIME_SLICING:
            raise FractionError(f"{key}: must be {TIME_SLICING}, got {shown(text)}")


# -- for one container ----------------------------------------------------------------------------


def _per_container(annotations: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Container, annotation and what it sets, of those that name a container."""
    for key in annotations:
        for prefix in (PER_CONTAINER, PORTIONS):
            if key.startswith(prefix):
                container, _, what = key.removeprefix(prefix).partition(".")
                yield container, key, what


def _of_container(annotations: Mapping[str, str]) -> Fraction | None:
    amounts: dict[str, int] = {}
    names: dict[str, str] = {}
    for container, key, what in _per_container(annotations):
        if key.startswith(PORTIONS):
            if what != PORTION_LIMIT:
                _unknown(key, f"{PORTIONS}NAME.{PORTION_LIMIT}")
            if FRACTION not in annotations:
                raise FractionError(f"{key[:_LONGEST_KEY]}: means nothing without {FRACTION}")
        elif what in (REQUEST, LIMIT):
            amounts[what] = _mib(key, annotations[key])
            names.setdefault(container, key)
        elif what not in (MODE, ASSIGNED):
            _unknown(key, f"{PER_CONTAINER}NAME.{REQUEST}, .{LIMIT} or .{MODE}")
    if not names:
        return None
    if len(names) > 1:
        second = list(names.values())[1]
        raise FractionError(
            f"{second}: one container of a pod has parts of GPUs by annotations, and"
            f" {next(iter(names))} has them: write {GPU} and {GPU_MEMORY} in the container's limits"
        )
    ((container, key),) = names.items()
    request = amounts.get(REQUEST, amounts.get(LIMIT, 0))
    limit = amounts.get(LIMIT, request)
    if request > limit:
        name = f"{PER_CONTAINER}{container}.{REQUEST}"
        raise FractionError(f"{name}: {request} MiB are more than the limit of {limit} MiB")
    if FRACTION in annotations:
        raise FractionError(f"{FRACTION}: is given together with {key}: leave one out")
    if annotations.get(FRACTION_MEMORY, str(request)).strip() != str(request):
        text = shown(annotations[FRACTION_MEMORY])
        raise FractionError(
            f"{FRACTION_MEMORY}: {text} is another amount than the {request} MiB of {key}: leave"
            " one out"
        )
    if annotations.get(FRACTION_CONTAINER, container) != container:
        text = shown(annotations[FRACTION_CONTAINER])
        raise FractionError(f"{FRACTION_CONTAINER}: {text} is another container than that of {key}")
    return Fraction(key, container, mib=limit, guaranteed=request if request < limit else None)


def _unknown(key: str, known: str) -> None:
    raise FractionError(
        f"{key[:_LONGEST_KEY]}: is unknown here: write {known}; a share of a GPU's time is the"
        " resource nvidia.com/gpucores"
    )


def _mib(key: str, text: str) -> int:
    """A Kubernetes quantity of bytes in MiB, rounded up."""
    try:
        amount = exact_value(text)
    except QuantityError:
        amount = exact_value("0")
    mib = -(-amount // _MIB)
    if amount < _MIB or mib > MAX_GPU_UNITS:
        raise FractionError(
            f"{key}: expected an amount of 1Mi or more, such as 4Gi, got {shown(text)}"
        )
    return int(mib)


# -- for the pod ----------------------------------------------------------------------------------


def _of_pod(annotations: Mapping[str, str], containers: Sequence[str]) -> Fraction | None:
    part, memory = annotations.get(FRACTION), annotations.get(FRACTION_MEMORY)
    if part is not None and memory is not None:
        raise FractionError(f"{FRACTION}: is given together with {FRACTION_MEMORY}: leave one out")
    container = annotations.get(FRACTION_CONTAINER, containers[0])
    if memory is not None:
        mib = _whole(FRACTION_MEMORY, memory, MAX_GPU_UNITS)
        return Fraction(FRACTION_MEMORY, container, mib=mib)
    if part is None:
        return None
    share = _part(FRACTION, part)
    limits = [(c, key) for c, key, what in _per_container(annotations) if what == PORTION_LIMIT]
    if not limits:
        return Fraction(FRACTION, container, percent=_percent(share))
    other, key = limits[0]
    if len(limits) > 1 or other != container:
        wrong = next((name for c, name in limits if c != container), key)
        raise FractionError(f"{wrong}: must name container {container}, which has {FRACTION}")
    limit = _part(key, annotations[key])
    if limit <= share:
        raise FractionError(
            f"{key}: must be above {FRACTION} {part.strip()}, got {annotations[key].strip()}"
        )
    least, most = _percent(share), _percent(limit)
    return Fraction(FRACTION, container, percent=most, guaranteed=least if least < most else None)


def _part(key: str, text: str) -> Decimal:
    try:
        part = Decimal(text.strip()) if len(text) <= 32 else Decimal("NaN")
    except InvalidOperation:
        part = Decimal("NaN")
    if not part.is_finite() or not 0 < part <= 1:
        raise FractionError(f"{key}: expected a number above 0 and at most 1, got {shown(text)}")
    return part


def _percent(part: Decimal) -> int:
    """The nearest whole percentage, so that three thirds make one card."""
    return max(1, int((part * 100).to_integral_value(ROUND_HALF_UP)))


def _whole(key: str, text: str, most: int) -> int:
    plain = text.strip()
    if plain.isascii() and plain.isdigit() and len(plain) <= 12 and 1 <= int(plain) <= most:
        return int(plain)
    raise FractionError(f"{key}: expected a whole number from 1 to {most}, got {shown(text)}")
