"""One archive that measures Sluice on a machine with a card, without network and without building: `make gpu-archive`.

It has our Python sources, the built libraries (stripped), the test programs, and the Python modules that the node needs.
tests/gpu/wrappers.sh makes the machine's own python3 run it there. Usage: gpu_archive.py ARCHIVE.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

REPO = Path(__file__).resolve().parents[2]
SOURCES = (
    "nodeagent",
    "sluicecommon",
    "tests/__init__.py",
    "tests/kit",
    "tests/gpu",
    "tests/bench",
)
FILES = ("VERSION", "LICENSE")
BUILT = ("libsluice_region.so", "shim", "preload", "proto", "sim")
PROGRAMS = ("tenant", "hookbench", "gpu_job", "gpu_slices", "gpu_costs", "gpu_ways")
MOST_BYTES = 40 << 20
"""Limit of the archive: the tools that lend machines with a GPU accept only small uploads."""
COMPILED = (".so", ".pyd")


def main() -> int:
    archive = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "sluice-gpu"
        copy_sources(root)
        copy_built(root)
        copy_modules(root / "vendor")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:gz") as file:
            file.add(root, arcname=root.name, filter=anonymous)
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB")
    if size > MOST_BYTES:
        print(f"gpu-archive: more than {MOST_BYTES >> 20} MiB", file=sys.stderr)
        return 1
    return 0


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Set root as the owner, so that unpacking gives the same for every user."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
    target.chmod(0o755 if source.stat().st_mode & 0o100 else 0o644)


def copy_sources(root: Path) -> None:
    """Copy files that git lists or would add: no caches, no results."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *SOURCES, *FILES]
    listed = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (REPO / name).is_file():
            copy(REPO / name, root / name)


def copy_built(root: Path) -> None:
    build = REPO / "build"
    for name in BUILT:
        place = build / name
        for file in [place] if place.is_file() else sorted(place.rglob("*")):
            target = root / "build" / file.relative_to(build)
            if file.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(file.readlink())
            elif file.is_file():
                copy(file, target)
                strip(target)
    for program in PROGRAMS:
        target = root / "build" / "meson" / "tests" / program
        copy(build / "meson" / "tests" / program, target)
        strip(target)


def strip(file: Path) -> None:
    if file.read_bytes()[:4] == b"\x7fELF":
        subprocess.run(["strip", "--strip-unneeded", file], check=True)


def copy_modules(vendor: Path) -> None:
    """Copy the needed distributions: those without compiled code to pure/, which works with any
    Python, the others to a folder with this Python's tag."""
    for name in needed():
        distribution = importlib.metadata.distribution(name)
        files = [file for file in distribution.files or [] if ".." not in file.parts]
        compiled = any(file.suffix in COMPILED for file in files)
        place = vendor / (sys.implementation.cache_tag if compiled else "pure")
        for file in files:
            source = Path(str(distribution.locate_file(file)))
            if "__pycache__" not in file.parts and source.is_file():
                copy(source, place / str(file))
                strip(place / str(file))


def needed() -> list[str]:
    """Names of the node's direct and indirect dependencies, from the installed distributions."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    found: dict[str, None] = {}
    ahead = list(project["dependencies"])
    while ahead:
        requirement = Requirement(ahead.pop())
        name = requirement.name.lower()
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = None
        ahead += importlib.metadata.requires(requirement.name) or []
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
