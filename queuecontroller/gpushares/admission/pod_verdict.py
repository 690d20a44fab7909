"""The admission verdict on a pod that requests parts of GPUs: refused, changed, or admitted with
warnings about names that have no effect.

The rules are HAMi's: a default count where only memory or cores are requested, all cores where a
whole card is requested, no privileged container, no node chosen by the user, HAMi's environment
variables, and the name of a scheduler that places shares. Other schedulers' names are translated
into HAMi's, and allocation annotations copied from another pod are refused.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queuecontroller.gpushares.admission.as_claims import as_claims
from queuecontroller.gpushares.admission.dialects import (
    check_waiting,
    fractions,
    limits_of,
    set_limits,
    volcano,
)
from queuecontroller.gpushares.admission.instances import as_instances, wants_instances
from queuecontroller.gpushares.admission.names import (
    ADMITTED_AS,
    MAX_LOOKED_UP,
    Names,
    names_of,
    nearest,
    unknown,
)
from queuecontroller.gpushares.admission.visible_devices import VisibleDevices, hide
from queuecontroller.gpushares.vendors import AskError, Vendor
from queuecontroller.gpushares.vendors.asks import Container, annotations_of, containers_of, table
from queuecontroller.gpushares.vendors.config import DeviceConfig, Nvidia
from queuecontroller.scheduler.placement.request import AnnotationError, annotated
from sluicecommon.hami.names import IGNORE, OPT_OUT, SCHEDULER
from sluicecommon.kai.fractions import FRACTIONS, asking, is_assigned
from sluicecommon.kubernetes.quantity import gpu_mib_problem
from sluicecommon.reader import Problem

DEFAULT_SCHEDULER: Final = "default-scheduler"
WHOLE: Final = 100
MAX_WARNINGS: Final = 8
LONGEST_WARNING: Final = 250
"""Characters; the API server truncates at 256 when there are many warnings."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Admission rules of a cluster."""

    devices: DeviceConfig = field(default_factory=DeviceConfig)
    scheduler: str = ""
    """Scheduler that places pods with shares; empty: pods keep the scheduler they name."""
    replaced: frozenset[str] = frozenset({DEFAULT_SCHEDULER})
    """Schedulers whose pods are given to `scheduler` instead."""
    served: frozenset[str] = frozenset({"sluice-scheduler", SCHEDULER})
    """Schedulers that use our extender: their pods keep the name."""
    writers: frozenset[str] = frozenset()
    """Users that may write allocations, including our own. Empty: our own user is unknown, and
    allocations are not guarded against changes."""
    claims: bool = False
    """True if the cluster allocates its GPUs by claims: requests for parts of them become claims.
    """
    visible_devices: VisibleDevices = VisibleDevices.ALLOW
    """Policy for NVIDIA_VISIBLE_DEVICES in containers without a GPU."""
    profiles: frozenset[str] = frozenset()
    """Resource names of the MIG profiles that nodes advertise."""

    names: Names = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", names_of(self.devices))

    @property
    def vendors(self) -> tuple[Vendor, ...]:
        return self.devices.vendors


@dataclass(frozen=True, slots=True)
class Verdict:
    pod: Mapping[str, Any]
    """The pod after mutation."""
    problems: tuple[Problem, ...] = ()
    """Reasons for a refusal; empty if the pod is admitted."""
    warnings: tuple[str, ...] = ()
    asks: bool = False
    """True if the pod requests any devices."""
    opted_out: bool = False
    """True if it requests devices and is left as it is by its label."""


def refused_change(
    rules: Rules, before: Mapping[str, Any], after: Mapping[str, Any], user: str
) -> tuple[Problem, ...]:
    """Problems of an update that changes a pod's allocation without the right to do so."""
    if not rules.writers or user in rules.writers:
        return ()
    old, new = annotations_of(before), annotations_of(after)
    return tuple(_forged(key) for key in sorted(rules.names.kept) if old.get(key) != new.get(key))


def refused_debugging(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Problems of ephemeral containers (`kubectl debug`) that are added to a pod with devices."""
    field = "spec.ephemeralContainers"
    old, new = (table(one, "spec").get("ephemeralContainers") for one in (before, after))
    known = old if isinstance(old, list) else []
    added = [one for one in new if one not in known] if isinstance(new, list) else []
    fix = "use another profile than sysadmin"
    return tuple(
        Problem(field, _sees_all(one), fix) for one in added if _is_one(one) and _is_privileged(one)
    )


def admit(rules: Rules, pod: Mapping[str, Any], user: str, ticket: str) -> Verdict:
    """The verdict on a pod created by `user`. `ticket` is the UID of the admission request, which
    identifies the pod's quota reservation."""
    given = annotations_of(pod)
    forged = [] if user in rules.writers else sorted(given.keys() & rules.names.written)
    forged += [] if user in rules.writers else sorted(filter(is_assigned, given))
    if forged:
        return Verdict(pod, tuple(map(_forged, forged)))
    every = _containers(pod)
    if not every:
        return Verdict(pod)  # The API server itself reports the malformed pod.
    if (_labels(pod)).get(OPT_OUT) == IGNORE:  # Unchanged, but not beyond the namespace's quota.
        return replace(_hidden(rules, pod, []), opted_out=_may_ask(rules, given, every))
    warnings = _unknown_names(rules, given, every)
    if not _may_ask(rules, given, every):
        return _hidden(rules, pod, warnings)
    made = copy.deepcopy(dict(pod))
    spec, every = made["spec"], _containers(made)
    try:
        asks, whole = _changed(rules, made, spec, every, warnings)
        problems = tuple(_refusals(rules, spec, every, asks)) if asks or whole else ()
        seen, told = hide(rules.visible_devices, rules.devices.nvidia, every)
        problems += tuple(seen)
        for one in told:
            _warn(warnings, one)
        claimed = (
            asks
            and rules.claims
            and not problems
            and as_claims(rules.devices.nvidia, spec, annotations_of(made))
        )
    except (AskError, AnnotationError) as error:
        return Verdict(pod, (_of_error(error),), tuple(warnings), True)
    if problems or not asks:
        kept = whole or rules.visible_devices is not VisibleDevices.ALLOW
        return Verdict(made if kept and not problems else pod, problems, tuple(warnings), asks)
    if not claimed:  # Any scheduler can place claims.
        _schedule(rules, spec, given, warnings)
    head = dict(made.get("metadata") or {})
    made["metadata"] = head
    head["annotations"] = {**(head.get("annotations") or {}), ADMITTED_AS: ticket}
    return Verdict(made, (), tuple(warnings), True)


def _hidden(rules: Rules, pod: Mapping[str, Any], warnings: list[str]) -> Verdict:
    """The verdict on a pod that is changed by the policy for its environment alone."""
    if rules.visible_devices is VisibleDevices.ALLOW:
        return Verdict(pod, warnings=tuple(warnings))
    made = copy.deepcopy(dict(pod))
    problems, told = hide(rules.visible_devices, rules.devices.nvidia, _containers(made))
    for one in told:
        _warn(warnings, one)
    return Verdict(pod if problems else made, tuple(problems), tuple(warnings))


def hidden_debugging(
    rules: Rules, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[Problem, ...]]:
    """The policy for ephemeral containers that are added to a pod: the pod with them, and
    problems."""
    old, new = (table(one, "spec").get("ephemeralContainers") for one in (before, after))
    if rules.visible_devices is VisibleDevices.ALLOW or not isinstance(new, list):
        return after, ()
    known = [one.get("name") for one in (old if isinstance(old, list) else ()) if _is_one(one)]
    made = copy.deepcopy(dict(after))
    every = [one for one in made["spec"]["ephemeralContainers"] if _is_one(one)]
    added = [one for one in every if one.get("name") not in known]
    problems, _ = hide(rules.visible_devices, rules.devices.nvidia, added)
    return (after if problems else made), tuple(problems)


def _containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All containers, init containers first. Empty if the document is not a well-formed pod."""
    spec = pod.get("spec")
    if not isinstance(spec, Mapping):
        return []
    listed = [spec.get("initContainers") or [], spec.get("containers") or []]
    if not all(isinstance(one, list) for one in listed) or not listed[1]:
        return []
    every = [one for part in listed for one in part]
    head = pod.get("metadata")
    formed = _is_one(head or {}) and _is_one((head or {}).get("annotations") or {})
    return every if formed and all(map(_is_formed, every)) else []


def _is_formed(container: object) -> bool:
    if not isinstance(container, dict):
        return False
    resources = container.get("resources") or {}
    return _is_one(resources) and all(
        _is_one(resources.get(kind) or {}) for kind in ("limits", "requests")
    )


def _may_ask(rules: Rules, given: Mapping[str, str], every: Iterable[Mapping[str, Any]]) -> bool:
    """False for most pods of a cluster, which are left unchanged."""
    if any(key in given for key in FRACTIONS) or asking(given):
        return True
    hides = rules.devices.nvidia.overwrite_env or rules.names.hiding
    known = rules.names.resources
    return bool(hides) or any(
        resource in known.get(resource.rpartition("/")[0], ())
        for one in every
        for resource in limits_of(one)
    )


def _changed(
    rules: Rules,
    made: dict[str, Any],
    spec: dict[str, Any],
    every: list[dict[str, Any]],
    warnings: list[str],
) -> tuple[bool, bool]:
    """Apply the rules to the pod `made`, in place. Returns True if it requests parts of devices,
    and True if it requests MIG instances, which the kubelet counts and any scheduler can place.
    Raises AskError, AnnotationError."""
    names = rules.devices.nvidia
    head = made.setdefault("metadata", {})
    annotations = dict(annotations_of(made))
    fractions(annotations, spec["containers"], names, spec.get("initContainers"), rules.claims)
    volcano(annotations, every, names)
    whole = wants_instances(annotations) and not rules.claims
    whole = whole and as_instances(every, names, rules.profiles, warnings)
    asks = False
    for container in every:
        asks |= _nvidia(names, spec, container, warnings)
    for read, container in zip(containers_of(made), every, strict=True):  # both: init ones first
        asks |= _others(rules.names, spec, container, read, annotations)
    if asks:
        annotated(annotations)
        check_waiting(annotations, _labels(made), rules.claims)
    if annotations != annotations_of(made):
        head["annotations"] = annotations
    return asks, whole


# -- NVIDIA's -------------------------------------------------------------------------------------


def _nvidia(
    names: Nvidia, spec: dict[str, Any], container: dict[str, Any], warnings: list[str]
) -> bool:
    read = Container(str(container.get("name") or ""), limits_of(container))
    limits: dict[str, int] = {}
    by_parts = any(read.has(one) for one in names.parts)
    if read.has(names.count):
        count = read.amount(names.count)
    elif by_parts and names.default_gpus:
        count = limits[names.count] = names.default_gpus
    else:
        count = 0
    if not count:
        if by_parts:
            raise AskError(
                f"container {read.name}: {names.memory}: is requested without {names.count}"
            )
        if names.overwrite_env:
            _set_env(container, "NVIDIA_VISIBLE_DEVICES", "none")
        return False
    percent = read.amount(names.memory_percent)
    if percent > WHOLE:
        raise AskError(
            f"container {read.name}: {names.memory_percent}: must be from 0 to 100, got {percent}"
        )
    memory = read.amount(names.memory)
    if problem := gpu_mib_problem(memory, names.memory_factor):
        raise AskError(f"container {read.name}: {names.memory}: {problem}")
    if memory and percent:
        raise AskError(
            f"container {read.name}: {names.memory} and {names.memory_percent}: both set the GPU"
            " memory: write one of them"
        )
    if not memory and not percent:
        if names.default_memory_mib:
            memory = limits[names.memory] = names.default_memory_mib
        else:
            percent = WHOLE
    if read.has(names.cores):
        cores = read.amount(names.cores)
        if cores > WHOLE:
            limits[names.cores] = WHOLE
            warnings.append(f"{names.cores}: {cores} counts as {WHOLE}, a whole GPU's")
    else:
        # A request for a whole card includes all of its time.
        whole = not memory and percent >= WHOLE and not names.default_cores
        limits[names.cores] = WHOLE if whole else names.default_cores
    if limits:
        set_limits(container, limits)
    if read.has(names.priority):
        _set_env(container, "CUDA_TASK_PRIORITY", str(read.amount(names.priority)))
    if names.core_policy != "default":
        _set_env(container, "GPU_CORE_UTILIZATION_POLICY", names.core_policy)
    if names.runtime_class and not spec.get("runtimeClassName"):
        spec["runtimeClassName"] = names.runtime_class
    return True


def _others(
    names: Names,
    spec: dict[str, Any],
    container: dict[str, Any],
    read: Container,
    annotations: dict[str, str],
) -> bool:
    found = False
    asked = {one.word: one for key in read.amounts for one in names.vendor_of.get(key, ())}
    for vendor in (asked | {one.word: one for one in names.hiding}).values():
        changes = vendor.rules.admit(vendor, read, annotations)
        if changes.limits:
            set_limits(container, changes.limits)
        for key, value in changes.env.items():
            _set_env(container, key, value)
        for key, value in changes.annotations.items():
            annotations.setdefault(key, value)
        found |= vendor.word in asked
        if changes.runtime_class and not spec.get("runtimeClassName"):
            spec["runtimeClassName"] = changes.runtime_class
    return found


def _set_env(container: dict[str, Any], name: str, value: str) -> None:
    """Set an environment variable unless the user has set it."""
    env = container.get("env")
    env = list(env) if isinstance(env, list) else []
    if not any(_is_one(one) and one.get("name") == name for one in env):
        container["env"] = [*env, {"name": name, "value": value}]


# -- refusals and the scheduler's name ------------------------------------------------------------


def _refusals(
    rules: Rules, spec: Mapping[str, Any], every: Iterable[Mapping[str, Any]], placed: bool
) -> Iterable[Problem]:
    """Problems of the pod. `placed` is True if it needs a scheduler that places shares."""
    for one in every:
        if _is_privileged(one):
            yield Problem("spec", _sees_all(one), "take privileged out, or the resources")
    ours = rules.scheduler and _scheduler(spec) in rules.served | rules.replaced
    if spec.get("nodeName") and ours and placed:
        yield Problem(
            "spec.nodeName",
            "the scheduler chooses the node, because it tracks free device memory and cores",
            "use a node selector: kubernetes.io/hostname: NAME",
        )


def _is_privileged(container: Mapping[str, Any]) -> bool:
    return table(container, "securityContext").get("privileged") is True


def _sees_all(container: Mapping[str, Any]) -> str:
    return (
        f"container {container.get('name')} is privileged: it would see every device of the node,"
        " whatever the pod requests"
    )


def _schedule(
    rules: Rules, spec: dict[str, Any], given: Mapping[str, str], warnings: list[str]
) -> None:
    name = _scheduler(spec)
    if not rules.scheduler or name in rules.served:
        return
    if name in rules.replaced:
        spec["schedulerName"] = rules.scheduler
        return
    if asking(given) or name in ("kai-scheduler", "volcano", "runai-scheduler"):
        _warn(
            warnings,
            f"spec.schedulerName: {name} is kept; add it to shares.replaced_schedulers to have"
            f" its pods placed by {rules.scheduler}",
        )


def _scheduler(spec: Mapping[str, Any]) -> str:
    return str(spec.get("schedulerName") or DEFAULT_SCHEDULER)


# -- names ----------------------------------------------------------------------------------------


def _unknown_names(
    rules: Rules, given: Mapping[str, str], every: Iterable[Mapping[str, Any]]
) -> list[str]:
    warnings: list[str] = []
    for key, near in unknown(given, rules.names, MAX_WARNINGS):
        hint = f"; did you mean {near}?" if near else ""
        _warn(warnings, f"annotation {key} is unknown here and has no effect{hint}")
    seen: set[str] = set()
    for container in every:
        for resource in limits_of(container):
            if len(warnings) >= MAX_WARNINGS or len(seen) >= MAX_LOOKED_UP:
                return warnings
            known = rules.names.resources.get(resource.rpartition("/")[0])
            if known is None or "/" not in resource or resource in known or resource in seen:
                continue
            seen.add(resource)
            if near := nearest(resource, known):
                _warn(
                    warnings,
                    f"resource {resource} is unknown here, so the pod stays Pending; did you mean"
                    f" {near}?",
                )
    return warnings


def _warn(warnings: list[str], text: str) -> None:
    if len(warnings) < MAX_WARNINGS:
        shortened = text if len(text) <= LONGEST_WARNING else f"{text[: LONGEST_WARNING - 1]}…"
        warnings.append(shortened)


def _forged(key: str) -> Problem:
    return Problem(
        f"metadata.annotations[{key}]",
        "records an allocation; only the scheduler may write it",
        "take it out of the manifest",
    )


def _of_error(error: Exception) -> Problem:
    what, _, why = str(error).partition(": ")
    return Problem(what, why) if why else Problem("spec", str(error))


def _labels(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    head = pod.get("metadata")
    found = head.get("labels") if isinstance(head, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _is_one(value: object) -> bool:
    return isinstance(value, dict)
