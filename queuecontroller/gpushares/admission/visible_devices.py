"""NVIDIA_VISIBLE_DEVICES of containers without a GPU.

NVIDIA's container runtime may give GPUs to any container with that variable
(`accept-nvidia-visible-devices-envvar-when-unprivileged`), outside every grant, and CUDA's images
set it to `all`. So with a policy the variable becomes `void` in each container that requests no
GPU, also against its image and its `envFrom`; `refuse` tells users who set it themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from queuecontroller.gpushares.vendors.config import Nvidia
from sluicecommon.hami.names import GPU, ResourceNames
from sluicecommon.kubernetes.quantity import QuantityError, parse_amount
from sluicecommon.reader import Problem, shown

VARIABLE: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
HIDDEN: Final = ("", VOID, "none")
"""Values by which the runtime gives no GPU."""
DEVICES: Final = (GPU, "nvidia.com/mig-")
"""Beginnings of resources by which NVIDIA's plugins give devices, as `nvidia.com/gpu.shared`."""
HAMI: Final = ResourceNames()
FIX: Final = f"take it out, or request {GPU}"


class VisibleDevices(StrEnum):
    """Policy for the variable in a container without a GPU."""

    ALLOW = "allow"
    VOID = "void"
    REFUSE = "refuse"


def hide(
    policy: VisibleDevices, names: Nvidia, containers: Iterable[dict[str, Any]]
) -> tuple[list[Problem], list[str]]:
    """Problems of containers, and warnings; in place, sets the variable in those without a GPU, and
    leaves it out where a GPU is given: a pod's own value goes before the device plugin's."""
    problems: list[Problem] = []
    warnings: list[str] = []
    if policy is VisibleDevices.ALLOW:
        return problems, warnings
    for one in containers:
        env = one.get("env") or []
        if not isinstance(env, list):
            continue  # The API server itself reports the malformed pod.
        own = [each for each in env if isinstance(each, Mapping) and each.get("name") == VARIABLE]
        seen = [each for each in own if not _is_hidden(each)]
        where = f"container {one.get('name')}: env {VARIABLE}"
        if _has_gpu(names, one):
            if seen:
                one["env"] = [each for each in env if each not in seen]
                warnings.append(f"{where}: is left out: the device plugin or the claim sets it")
            continue
        if seen:
            what = f"{_value(seen[-1])} would show GPUs that the container does not request"
            if policy is VisibleDevices.REFUSE:
                problems.append(Problem(where, what, FIX))
            else:
                warnings.append(f"{where}: {what}, and is {VOID} instead; {FIX}")
        if seen or not own:
            kept = [each for each in env if each not in own]
            one["env"] = [*kept, {"name": VARIABLE, "value": VOID}]
    return problems, warnings


def _is_hidden(entry: Mapping[str, Any]) -> bool:
    return not entry.get("valueFrom") and (entry.get("value") or "") in HIDDEN


def _value(entry: Mapping[str, Any]) -> str:
    return "a reference" if entry.get("valueFrom") else shown(entry.get("value"))


def _has_gpu(names: Nvidia, container: Mapping[str, Any]) -> bool:
    """True if NVIDIA's devices are given to the container by a resource."""
    resources = container.get("resources")
    amounts_only = {*names.resources, *HAMI.resources} - {names.count, GPU}
    for kind in ("limits", "requests"):
        amounts = resources.get(kind) if isinstance(resources, Mapping) else None
        for name, amount in amounts.items() if isinstance(amounts, Mapping) else ():
            if name != names.count and (name in amounts_only or not name.startswith(DEVICES)):
                continue
            try:
                if parse_amount(name, amount) > 0:
                    return True
            except QuantityError:
                continue
    return False
