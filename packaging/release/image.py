"""Packs the container images as an OCI image layout, without a container engine.

`python packaging/release/image.py ROOT.tar DEBS OUT`: unpacks a Debian root (packaging/release/root.sh image),
installs sluice-nodeagent and sluice-queue from the directory DEBS into it, and writes the layout to
the directory OUT: one layer, two images, which share it; and OUT.tar, the same as one file, which
`ctr images import`, `kind load image-archive`, `podman load` and k3s' image directory take. Needs
root, for chroot and owners. $IMAGE_REGISTRY: what stands before the images' names, `localhost`
where it is not set.

Each image has two names. containerd takes `io.containerd.image.name` as it stands, so that one is
a whole reference: a bare name would be kept as it is, and the kubelet, which asks for whole ones,
could start no container of it. skopeo and podman look for the short one.

The format is four small JSON files over content-addressed blobs (OCI image specification 1.1), so
there is nothing a tool would do better; the test reads it back digest by digest.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REPO: Final = Path(__file__).resolve().parents[2]
QUEUE_UID: Final = 64000
"""UID of sluice-queue in the image; a number, because Kubernetes' runAsNonRoot requires one."""
PACKAGES: Final = ("sluice-common", "sluice-nodeagent", "sluice-queue", "sluice-sim")
INSTALLER: Final = REPO / "packaging" / "release" / "install-debs.sh"
"""Script that installs them inside of the root; the Containerfile runs the same one."""
REGISTRY: Final = "localhost"
"""Registry name under which no one can publish: an image that was not imported is missed, not a
stranger's."""
EMPTIED: Final = ("tmp", "run", "dev", "proc", "sys")
LEFT_OUT: Final = ("etc/hostname", "etc/resolv.conf")
"""Files of the machine that packed the root; a container gets its own from its runtime."""
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    name: str
    title: str
    user: str
    entrypoint: tuple[str, ...]
    ports: tuple[str, ...]


IMAGES: Final = (
    Image(
        "sluice-nodeagent",
        "Sluice: shares the GPUs of a node between jobs",
        "0:0",
        ("/usr/bin/sluice", "serve"),
        ("9464/tcp",),
    ),
    Image(
        "sluice-queue",
        "Sluice: the queue controller",
        f"{QUEUE_UID}:{QUEUE_UID}",
        ("/usr/bin/sluice-queue", "serve", "--config", "/etc/sluice/queue.toml"),
        ("9465/tcp", "9466/tcp"),
    ),
)


def install(root: Path, debs: list[Path]) -> None:
    """Install packages as apt would, without services to start."""
    inside = root / "tmp" / "packages"
    inside.mkdir()
    for path in (*debs, INSTALLER):
        shutil.copy(path, inside)
    subprocess.run(
        [
            "chroot",
            root,
            "/usr/bin/env",
            "-i",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL=C.UTF-8",
            f"/tmp/packages/{INSTALLER.name}",
            "/tmp/packages",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    for directory in EMPTIED:
        shutil.rmtree(root / directory, ignore_errors=True)
        (root / directory).mkdir(parents=True)
    for name in LEFT_OUT:
        (root / name).unlink(missing_ok=True)
    (root / "tmp").chmod(0o1777)


def layer(root: Path, target: Path, epoch: int) -> str:
    """Writes the tree as tar.gz, in order, with no time later than the sources'; the digest of
    what is inside of the compression."""
    digest = hashlib.sha256()

    class Both:
        """Into the hash and into gzip."""

        def __init__(self, file: gzip.GzipFile) -> None:
            self._file = file

        def write(self, data: bytes) -> int:
            digest.update(data)
            return self._file.write(data)

    with (
        target.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=Both(packed), mode="w|", format=tarfile.PAX_FORMAT) as tar,  # type: ignore[call-overload]  # it only writes
    ):
        for path in walk(root):
            entry = tar.gettarinfo(path, path.relative_to(root).as_posix())
            entry.uname = entry.gname = ""
            entry.mtime = min(int(entry.mtime), epoch)
            if entry.isreg():
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    return f"sha256:{digest.hexdigest()}"


def walk(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        names.sort()
        here = Path(directory)
        if here != root:
            yield here
        for name in sorted([*files, *(one for one in names if (here / one).is_symlink())]):
            if not stat.S_ISSOCK((here / name).lstat().st_mode):
                yield here / name


class Layout:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.blobs = directory / "blobs" / "sha256"
        self.blobs.mkdir(parents=True)
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')

    def add_file(self, path: Path, media_type: str) -> dict[str, Any]:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        size = path.stat().st_size
        path.replace(self.blobs / digest)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": size}

    def add(self, document: object, media_type: str) -> dict[str, Any]:
        path = self.directory / ".new"
        path.write_text(json.dumps(document, sort_keys=True, separators=(",", ":")))
        return self.add_file(path, media_type)


def config_of(image: Image, diff_id: str, version: str, created: str) -> dict[str, Any]:
    return {
        "created": created,
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {
            "User": image.user,
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"],
            "Entrypoint": list(image.entrypoint),
            "ExposedPorts": {port: {} for port in image.ports},
            "Labels": labels(image, version, created),
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        "history": [{"created": created, "created_by": "packaging/release/image.py"}],
    }


def labels(image: Image, version: str, created: str) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.description": image.title,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }


def pack(
    archive: Path,
    debs: list[Path],
    out: Path,
    version: str,
    epoch: int,
    registry: str = REGISTRY,
) -> None:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="image-") as scratch:
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        subprocess.run(["tar", "-C", root, "-xf", archive], check=True)
        install(root, debs)
        layout = Layout(out)
        packed = Path(scratch) / "layer.tar.gz"
        diff_id = layer(root, packed, epoch)
        blob = layout.add_file(packed, "application/vnd.oci.image.layer.v1.tar+gzip")
    manifests = []
    for image in IMAGES:
        config = layout.add(
            config_of(image, diff_id, version, created), "application/vnd.oci.image.config.v1+json"
        )
        manifest = layout.add(
            {
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config,
                "layers": [blob],
                "annotations": labels(image, version, created),
            },
            "application/vnd.oci.image.manifest.v1+json",
        )
        machine = {"architecture": ARCHITECTURES[platform.machine()], "os": "linux"}
        names = {
            "org.opencontainers.image.ref.name": f"{image.name}:{version}",
            "io.containerd.image.name": f"{registry}/{image.name}:{version}",
        }
        manifests.append(manifest | {"platform": machine, "annotations": names})
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    }
    (out / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True))
    bundle(out, out.with_suffix(".tar"), epoch)


def bundle(layout: Path, target: Path, epoch: int) -> None:
    """The layout as one file, the same to the byte for the same layout."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        entry.mode = 0o755 if entry.isdir() else 0o644
        return entry

    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in walk(layout):
            tar.add(path, path.relative_to(layout).as_posix(), recursive=False, filter=plain)


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print("usage: image.py ROOT.tar DEBS OUT", file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("image.py: must be root, for chroot and the owners of files", file=sys.stderr)
        return 1
    os.umask(0o022)  # whatever the caller's: it would be in the modes of directories
    archive, directory, out = (Path(one).absolute() for one in arguments)
    debs = [path for name in PACKAGES for path in sorted(directory.glob(f"{name}_*.deb"))]
    if len(debs) != len(PACKAGES):
        print(
            f"image.py: {directory} must hold one deb of each of {', '.join(PACKAGES)}",
            file=sys.stderr,
        )
        return 1
    version = debs[0].name.split("_")[1]
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    registry = os.environ.get("IMAGE_REGISTRY") or REGISTRY
    pack(archive, debs, out, version, epoch, registry)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
