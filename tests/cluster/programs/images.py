"""Images for the node, packed here: the pause image, busybox for pods without a GPU, and kube-scheduler."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster.machine.settings import PAUSE
from tests.cluster.programs import pins
from tests.cluster.programs.build import Programs, once

BUSYBOX = "localhost/busybox:1"
SCHEDULER = "localhost/kube-scheduler:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"


def made(programs: Programs) -> list[Path]:
    """Archives to import, built once."""
    source = Path(__file__).with_name("pause.c")

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            (root / "pause").mkdir()
            subprocess.run(
                ["gcc", "-static", "-O2", "-o", root / "pause" / "pause", source], check=True
            )
            pack(PAUSE, root / "pause", target / "pause.tar", {"Entrypoint": ["/pause"]})
            _busybox(programs, root / "busybox")
            command = {"Cmd": ["/bin/sh"], "Env": ["PATH=/bin"]}
            pack(BUSYBOX, root / "busybox", target / "busybox.tar", command)

    directory = once(pins.Part("images", "1", (source, Path(__file__)), PAUSE + BUSYBOX), make)
    return sorted(directory.glob("*.tar"))


def scheduler(programs: Programs) -> Path:
    """An archive with the cluster's own kube-scheduler, for the chart's value scheduler.image."""

    def make(target: Path) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            place = Path(scratch) / "bin"
            place.mkdir()
            shutil.copy(programs["kube-scheduler"], place / "kube-scheduler")
            pack(SCHEDULER, place.parent, target / "scheduler.tar", {"Env": ["PATH=/bin"]})

    inputs = (Path(__file__),)
    part = pins.Part("scheduler-image", programs.version, inputs, programs.kubernetes.name)
    return once(part, make) / "scheduler.tar"


def _busybox(programs: Programs, root: Path) -> None:
    for name in ("bin", "tmp", "etc", "dev", "proc", "sys"):
        (root / name).mkdir(parents=True)
    program = root / "bin" / "busybox"
    (found,) = (one for one in programs.debian.glob("**/bin/busybox") if not one.is_symlink())
    program.write_bytes(found.read_bytes())
    program.chmod(0o755)
    applets = subprocess.run([found, "--list"], capture_output=True, text=True, check=True).stdout
    for name in set(applets.split()) - {"busybox"}:
        (root / "bin" / name).symlink_to("busybox")


def pack(name: str, root: Path, target: Path, config: dict[str, Any]) -> None:
    """An OCI layout of one layer, as a tar archive that containerd imports under `name`."""
    layer = _layer(root)
    with tarfile.open(target, "w") as archive:
        described = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _blob(archive, json.dumps(described).encode(), CONFIG_TYPE),
            "layers": [_blob(archive, layer, LAYER_TYPE)],
        }
        entry = _blob(archive, json.dumps(manifest).encode(), MANIFEST_TYPE)
        entry["annotations"] = {"io.containerd.image.name": name}
        index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
        _file(archive, "index.json", json.dumps(index).encode())
        _file(archive, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')


def _layer(root: Path) -> bytes:
    def owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in sorted(os.listdir(root)):
            tar.add(root / name, name, filter=owned_by_root)
    return buffer.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(archive: tarfile.TarFile, data: bytes, kind: str) -> dict[str, Any]:
    digest = _digest(data)
    _file(archive, f"blobs/{digest.replace(':', '/')}", data)
    return {"mediaType": kind, "digest": digest, "size": len(data)}


def _file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))
