"""The images of the Containerfile hold what those of the packages hold."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.places import BUILD, REPO
from tests.packages.containerfile.builder import Stage, build, instructions
from tests.packages.debs import built

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(os.geteuid() != 0, reason="runs a build in chroots: needs root"),
]
FILE = REPO / "Containerfile"
ARCHIVE = BUILD / "debian" / "image-root.tar"
WORK = BUILD / "test-packages"
OF_A_BUILDER = ("etc/hostname", "etc/hosts", "etc/resolv.conf", "dev/", "proc/", "sys/", "run/")
"""Paths that builders and container runtimes mount."""
DATED = ("var/lib/dpkg/", "etc/shadow-", "etc/passwd-", "var/lib/systemd/")
"""Records of the installation itself, with its order and its time."""


@pytest.fixture(scope="module")
def stages() -> Iterator[dict[str, Stage]]:
    release = REPO / "packaging" / "release"
    subprocess.run([release / "root.sh", "image", ARCHIVE], check=True, timeout=1200)
    work = WORK / "containerfile"
    given = {name: os.environ[name] for name in ("PIP_INDEX_URL",) if name in os.environ}
    epoch = subprocess.run([release / "epoch.sh"], check=True, capture_output=True, text=True)
    given["SOURCE_DATE_EPOCH"] = epoch.stdout.strip()
    yield build(FILE, ARCHIVE, work, given)
    shutil.rmtree(work, ignore_errors=True)


@pytest.fixture(scope="module")
def packed() -> Iterator[Path]:
    """The root of the image of the packages."""
    out = WORK / "compared" / "image"
    out.parent.mkdir(parents=True, exist_ok=True)
    debs = next(iter(built().values())).parent
    image = REPO / "packaging" / "release" / "image.py"
    subprocess.run([sys.executable, image, ARCHIVE, debs, out], check=True, timeout=1200)
    layer = max((out / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    root = out.parent / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    with tarfile.open(layer) as tar:
        tar.extractall(root, filter="fully_trusted")
    yield root
    shutil.rmtree(out.parent, ignore_errors=True)


def listed(root: Path) -> dict[str, tuple[str, int, int, str]]:
    """Kind and mode, owner, group and content of every file by its path."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in (*names, *files):
            path = Path(directory, name)
            where = path.relative_to(root).as_posix()
            status = path.lstat()
            content = ""
            if stat.S_ISLNK(status.st_mode):
                content = str(path.readlink())
            elif stat.S_ISREG(status.st_mode) and not where.startswith(DATED):
                with path.open("rb") as file:
                    content = hashlib.file_digest(file, "sha256").hexdigest()
            if not where.startswith(OF_A_BUILDER):
                mode = stat.filemode(status.st_mode)
                found[where] = (mode, status.st_uid, status.st_gid, content)
    return found


def test_it_holds_the_files_of_the_packages_image(stages: dict[str, Stage], packed: Path) -> None:
    ours, theirs = listed(stages["root"].root), listed(packed)
    assert sorted(ours.keys() ^ theirs.keys()) == []
    assert {path: (one, theirs[path]) for path, one in ours.items() if one != theirs[path]} == {}
    assert "usr/bin/sluice-queue" in ours
    assert ours["var/lib/sluice-queue"][:3] == ("drwx------", 64000, 64000)


def test_its_images_start_what_the_others_start(stages: dict[str, Stage]) -> None:
    # The packer is a script, not a module of a package.
    sys.path.insert(0, str(REPO / "packaging" / "release"))
    try:
        from image import IMAGES
    finally:
        sys.path.pop(0)
    for image in IMAGES:
        stage = stages[image.name.removeprefix("sluice-")]
        assert stage.config["ENTRYPOINT"] == list(image.entrypoint)
        assert stage.config["USER"] == image.user
        assert stage.config["EXPOSE"] == " ".join(image.ports)
        assert stage.environment["LC_ALL"] == "C.UTF-8"
        command: list[str | Path] = [
            "chroot",
            f"--userspec={image.user}",
            stage.root,
            image.entrypoint[0],
        ]
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
        assert (REPO / "VERSION").read_text().strip() in done.stdout


def test_a_build_needs_no_network_but_debians_and_one_wheel() -> None:
    text = FILE.read_text()
    assert [rest for word, rest in instructions(FILE) if word == "ADD"] == []
    assert not {"curl", "wget", "git clone"} & set(text.split())
