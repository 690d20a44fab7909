"""An `nvidia.com/gpu` CDI specification as `nvidia-ctk cdi generate` makes it, over whatever files
stand for the driver: nodes, libraries, and hooks with the names of the real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_OPTIONS = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def installed_spec(
    gpus: Sequence[str],
    libraries: Mapping[str, str],
    version: str = "0.5.0",
    node: str = "/dev/null",
    hook: str = "",
) -> dict[str, Any]:
    """`libraries`: host path by container path. `node` stands for every device node; `hook` is the
    program behind the toolkit's own hooks, none are written without it."""
    hooks = [
        ["create-symlinks", "--link", "libcuda.so.1::/usr/lib64/libcuda.so"],
        ["enable-cuda-compat", "--host-driver-version=570.86.15"],
        ["update-ldcache", "--folder", "/usr/lib64"],
    ]
    return {
        "cdiVersion": version,
        "kind": "nvidia.com/gpu",
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [_node("/dev/nvidiactl", node), _node("/dev/nvidia-uvm", node)],
            "hooks": [
                {"hookName": "createContainer", "path": hook, "args": ["nvidia-cdi-hook", *args]}
                for args in hooks
                if hook
            ],
            "mounts": [
                {"hostPath": host, "containerPath": container, "options": _OPTIONS}
                for container, host in libraries.items()
            ],
        },
        "devices": [
            _device(name, [_node(f"/dev/nvidia{index}", node)])
            for index, gpu in enumerate(gpus)
            for name in (str(index), gpu)
        ]
        + [_device("all", [_node(f"/dev/nvidia{index}", node) for index in range(len(gpus))])],
    }


def write_installed(directory: Path, document: Mapping[str, Any]) -> Path:
    """Write the document as nvidia.yaml, which the runtime reads."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "nvidia.yaml"
    path.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
    return path


def _node(path: str, host: str) -> dict[str, str]:
    return {"path": path} if path == host else {"path": path, "hostPath": host}


def _device(name: str, nodes: list[dict[str, str]]) -> dict[str, Any]:
    return {"name": name, "containerEdits": {"deviceNodes": nodes}}
