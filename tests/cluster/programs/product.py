"""The product as a user installs it: the image that `make packages` makes, and the chart. Built
once for the same sources, outside of the checkout, since it takes minutes; the tests of a cluster
take nothing else of Sluice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.programs import pins
from tests.cluster.programs.build import Unbuildable, once
from tests.kit.places import BUILD, REPO

CHART = REPO / "packaging" / "helm" / "sluice"
HELM_TOOL = REPO / "packaging" / "fetch" / "helm-tool.sh"
NOT_IN_THE_IMAGE = {
    "tests",
    "docs",
    "build",
    "shared",
    "helm",
    "kubernetes",
    "grafana",
    "prometheus",
    "__pycache__",
}
KEPT = 3
"""Images of earlier sources that stay in the cache."""
DEADLINE_S = 3600


@dataclass(frozen=True)
class Images:
    archive: Path
    names: dict[str, str]
    """Whole reference by the image's short name: sluice-nodeagent, sluice-queue."""

    def repository(self, name: str) -> str:
        return self.names[name].rpartition(":")[0]

    def tag(self, name: str) -> str:
        return self.names[name].rpartition(":")[2]


def images() -> Images:
    """SLUICE_CLUSTER_IMAGE: a directory with `image` and `image.tar` that is there already, as build/packages after
    `make packages`. Raises Unbuildable."""
    given = os.environ.get("SLUICE_CLUSTER_IMAGE")
    if given:
        place = Path(given)
    else:
        version = (REPO / "VERSION").read_text().strip()
        place = once(pins.Part("image", version, (), _digest_of_sources()), _make)
        _forget_old(place)
    index = json.loads((place / "image" / "index.json").read_text())
    names = {}
    for entry in index["manifests"]:
        notes = entry["annotations"]
        short = notes["org.opencontainers.image.ref.name"].partition(":")[0].rpartition("/")[2]
        names[short] = notes["io.containerd.image.name"]
    return Images(place / "image.tar", names)


def helm() -> Path:
    """Built from its module where none is installed, and kept in the cache: a checkout's build directory is emptied."""

    def make(target: Path) -> None:
        done = subprocess.run([HELM_TOOL], capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode != 0:
            raise Unbuildable(f"helm: {done.stderr.strip()[-500:]}")
        shutil.copy(done.stdout.strip(), target / "helm")

    return once(pins.Part("helm", "3", (HELM_TOOL,), ""), make) / "helm"


def _make(target: Path) -> None:
    """Make the image as packaging/release/packages.sh does, without the packages for other
    distributions."""
    if os.geteuid() != 0:
        raise Unbuildable("the image needs root: chroot, and the owners of files")
    debs, root = target / "deb", pins.cache() / "debian-image-root.tar"
    environment = {**os.environ, "WORK": "cluster"}
    for command in (
        [REPO / "packaging" / "release" / "deb.sh", debs],
        [REPO / "packaging" / "release" / "root.sh", "image", root],
        [sys.executable, REPO / "packaging" / "release" / "image.py", root, debs, target / "image"],
    ):
        done = subprocess.run(
            ["nice", *command], env=environment, capture_output=True, text=True, timeout=DEADLINE_S
        )
        if done.returncode != 0:
            raise Unbuildable(f"{command[0]}: {(done.stderr or done.stdout).strip()[-1500:]}")
    shutil.rmtree(BUILD / "work" / "cluster", ignore_errors=True)


def _digest_of_sources() -> str:
    digest = hashlib.sha256()
    for directory, names, files in os.walk(REPO):
        names[:] = sorted(
            one for one in names if one not in NOT_IN_THE_IMAGE and not one.startswith(".")
        )
        for name in sorted(files):
            path = Path(directory) / name
            if name.endswith((".md", ".pyc")) or name.startswith(".") or not path.is_file():
                continue
            digest.update(path.relative_to(REPO).as_posix().encode() + b"\0")
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _forget_old(current: Path) -> None:
    others = sorted(
        (one for one in current.parent.glob("image-*") if one.is_dir() and one != current),
        key=lambda one: one.stat().st_mtime,
    )
    for one in others[: max(0, len(others) + 1 - KEPT)]:
        shutil.rmtree(one, ignore_errors=True)
