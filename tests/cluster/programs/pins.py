"""Which versions of other people's programs the cluster is made of, and where they lie once they are built.

The versions of Kubernetes and containerd stand in the go.mod files beside their main programs; here is only which of them
there are. What is built lies outside of the checkout, below a directory named by a hash of everything that decides it:
a change of the pins is another directory, and two checkouts with the same pins share one.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
MINORS = {"1.37": "v1.37.mod", "1.36": "go.mod", "1.30": "v1.30.mod"}
"""Minors of Kubernetes, newest first, with their module file: the newest there is, the first that divides a device by
default, and the oldest we claim."""
DEFAULT = "1.36"
DEBS = ("runc", "containernetworking-plugins", "busybox-static")
"""Taken out of Debian's packages, not installed: a node's runtime and network plugins, and what small images are made of."""
KUBERNETES_PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kubectl",
    "constants",
)


def cache() -> Path:
    """SLUICE_CLUSTER_CACHE, or the user's cache directory."""
    given = os.environ.get("SLUICE_CLUSTER_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice" / "cluster"


def wanted_minor() -> str:
    """SLUICE_KUBERNETES (`make cluster-up KUBERNETES=1.30`), default DEFAULT."""
    minor = os.environ.get("SLUICE_KUBERNETES") or DEFAULT
    if minor not in MINORS:
        raise ValueError(f"Kubernetes {minor}: there is {', '.join(MINORS)}")
    return minor


@dataclass(frozen=True)
class Part:
    """One thing that is built, by what decides the outcome."""

    name: str
    version: str
    inputs: tuple[Path, ...]
    flags: str

    @property
    def directory(self) -> Path:
        digest = hashlib.sha256(self.flags.encode())
        for path in self.inputs:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return cache() / f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


def required(module_file: Path, module: str) -> str:
    """The version of `module` that a go.mod asks for, without its v."""
    found = re.search(
        rf"^(?:require)?\s*{re.escape(module)} v(\S+)$", module_file.read_text(), re.MULTILINE
    )
    if found is None:
        raise ValueError(f"{module_file} does not require {module}")
    return found[1]
