"""Check whether the NVIDIA container runtime lets a container take GPUs that it was not allocated.

With `accept-nvidia-visible-devices-envvar-when-unprivileged` at its default, any image that sets
NVIDIA_VISIBLE_DEVICES=all gets every GPU of the node, outside every grant. Source: the toolkit's
config.toml (version 1.20) and its documentation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.ports.views import Finding

KEY: Final = "accept-nvidia-visible-devices-envvar-when-unprivileged"
CONFIGS: Final = (
    Path("/etc/nvidia-container-runtime/config.toml"),
    Path("/usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml"),
)
"""The package's file, and the GPU operator's."""
BINARIES: Final = (
    Path("/usr/bin/nvidia-container-runtime"),
    Path("/usr/local/nvidia/toolkit/nvidia-container-runtime"),
)
TOPIC: Final = "container toolkit"
LARGEST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ToolkitReading:
    path: Path | None = None
    """The file that counts; None if there is none."""
    installed: bool = False
    accepts: bool | None = None
    """True if containers get GPUs by NVIDIA_VISIBLE_DEVICES; None if there is no such runtime or
    the file cannot be read."""
    error: str = ""


def read(configs: Sequence[Path] = CONFIGS, binaries: Sequence[Path] = BINARIES) -> ToolkitReading:
    """The first of the files that exists."""
    installed = any(path.exists() for path in binaries)
    for path in configs:
        try:
            with path.open("rb") as file:
                document = tomllib.loads(file.read(LARGEST_BYTES).decode("utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            return ToolkitReading(path, installed, None, str(error))
        value = document.get(KEY, True)
        if not isinstance(value, bool):
            return ToolkitReading(path, True, None, f"{KEY} is {value!r}, not true or false")
        return ToolkitReading(path, True, value)
    return ToolkitReading(None, installed, True if installed else None)


def finding(reading: ToolkitReading, strategy: str) -> Finding:
    """Doctor's finding. `strategy` is that of [kubelet], because envvar needs the unsafe
    setting."""
    place = reading.path or CONFIGS[0]
    if reading.error:
        return Finding(
            TOPIC,
            "warning",
            f"{place}: {reading.error}",
            f"make it readable TOML: {KEY} cannot be checked",
        )
    if reading.accepts is None:
        return Finding(TOPIC, "ok", "no NVIDIA container runtime installed")
    if reading.accepts:
        if strategy == "envvar":
            return Finding(
                TOPIC,
                "warning",
                f"{place}: {KEY} is true, as kubelet.strategy envvar needs it: any container may"
                " take all GPUs with NVIDIA_VISIBLE_DEVICES=all",
                "use kubelet.strategy cdi-cri (containerd 1.7, CRI-O 1.28) or cdi-annotations, and"
                " then set it to false",
            )
        return Finding(
            TOPIC,
            "warning",
            f"{place}: {KEY} is true{'' if reading.path else ' by default'}: any container may take"
            " all GPUs with NVIDIA_VISIBLE_DEVICES=all, outside every grant",
            f"nvidia-ctk config --set {KEY}=false --in-place, then restart the container runtime",
        )
    if strategy == "envvar":
        return Finding(
            TOPIC,
            "missing",
            f"{place}: {KEY} is false, so kubelet.strategy envvar gives containers no GPU at all",
            "use kubelet.strategy cdi-cri or cdi-annotations",
        )
    return Finding(TOPIC, "ok", f"{place}: containers get no GPU by NVIDIA_VISIBLE_DEVICES")
