"""The container images: a valid OCI layout, and entry points that run in what the layer holds."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.places import BUILD, REPO
from tests.packages.debs import VERSION, built
from tests.packages.machine import until

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="packs and runs a root: needs root"),
]
PACKAGES = BUILD / "test-packages"
ARCHIVE = BUILD / "debian" / "image-root.tar"


@pytest.fixture(scope="module")
def layout() -> Path:
    out = PACKAGES / "image-test"
    subprocess.run(
        [REPO / "packaging" / "release" / "root.sh", "image", ARCHIVE], check=True, timeout=1200
    )
    pack(out)
    return out


def pack(out: Path, **options: Any) -> None:
    debs = next(iter(built().values())).parent
    subprocess.run(
        [sys.executable, REPO / "packaging" / "release" / "image.py", ARCHIVE, debs, out],
        check=True,
        timeout=1200,
        **options,
    )


def blob(layout: Path, descriptor: dict[str, Any]) -> Path:
    algorithm, _, digest = descriptor["digest"].partition(":")
    path = layout / "blobs" / algorithm / digest
    assert path.stat().st_size == descriptor["size"]
    with path.open("rb") as file:
        assert hashlib.file_digest(file, algorithm).hexdigest() == digest
    return path


def images(layout: Path) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Manifest and config by reference, every digest on the way checked."""
    index = json.loads((layout / "index.json").read_text())
    found = {}
    for descriptor in index["manifests"]:
        manifest = json.loads(blob(layout, descriptor).read_text())
        config = json.loads(blob(layout, manifest["config"]).read_text())
        found[descriptor["annotations"]["org.opencontainers.image.ref.name"]] = manifest, config
    return found


@pytest.fixture(scope="module")
def root(layout: Path) -> Iterator[Path]:
    manifest, _ = next(iter(images(layout).values()))
    made = PACKAGES / "image-test-root"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    subprocess.run(["tar", "-C", made, "-xzf", blob(layout, manifest["layers"][0])], check=True)
    os.mknod(made / "dev/null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (made / "dev/null").chmod(0o666)
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_every_digest_and_size_in_the_layout_is_true(layout: Path) -> None:
    assert json.loads((layout / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    assert sorted(images(layout)) == [f"sluice-nodeagent:{VERSION}", f"sluice-queue:{VERSION}"]
    used = {"index.json", "oci-layout"}
    for manifest, config in images(layout).values():
        assert (
            len(config["rootfs"]["diff_ids"]) == len(manifest["layers"]) == len(config["history"])
        )
        for part, diff_id in zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True):
            with gzip.open(blob(layout, part)) as plain:
                assert f"sha256:{hashlib.file_digest(plain, 'sha256').hexdigest()}" == diff_id  # type: ignore[arg-type]  # a file object
            used |= {part["digest"][7:], manifest["config"]["digest"][7:]}
    files = {path.name for path in layout.rglob("*") if path.is_file()}
    index = json.loads((layout / "index.json").read_text())
    assert files == used | {one["digest"][7:] for one in index["manifests"]}


def test_each_service_has_its_user_its_entry_point_and_its_labels(layout: Path) -> None:
    (_, node), (_, queue) = (
        images(layout)[f"{name}:{VERSION}"] for name in ("sluice-nodeagent", "sluice-queue")
    )
    assert node["config"]["Entrypoint"] == ["/usr/bin/sluice", "serve"]
    assert queue["config"]["Entrypoint"][:2] == ["/usr/bin/sluice-queue", "serve"]
    assert queue["config"]["User"] == "64000:64000"
    for config in (node, queue):
        assert (config["os"], config["config"]["Labels"]["org.opencontainers.image.version"]) == (
            "linux",
            VERSION,
        )
        assert config["config"]["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_the_layer_holds_no_leftovers(layout: Path) -> None:
    manifest, _ = next(iter(images(layout).values()))
    with tarfile.open(blob(layout, manifest["layers"][0])) as tar:
        names = set(tar.getnames())
        state = tar.getmember("var/lib/sluice-queue")
    assert (state.uid, state.mode & 0o777) == (64000, 0o700)
    inside = ("tmp/", "run/", "dev/", "proc/", "var/cache/apt/", "var/lib/apt/lists/", "var/log/")
    assert [name for name in names if name.startswith(inside)] == []
    assert {
        "usr/bin/sluice",
        "usr/bin/sluice-queue",
        f"usr/lib/sluice/{VERSION}/shim/libcuda.so.1",
    } <= names
    assert not names & {"usr/sbin/policy-rc.d", "etc/hostname", "etc/resolv.conf", "etc/machine-id"}


def test_a_second_image_is_the_same_to_the_byte(layout: Path, tmp_path: Path) -> None:
    """Another directory, another umask, another time zone, some time later."""
    out = tmp_path / "again" / "image"
    out.parent.mkdir()
    epoch = subprocess.run(
        [REPO / "packaging" / "release" / "epoch.sh"], check=True, capture_output=True, text=True
    ).stdout.strip()
    first = tmp_path / "first" / "image"
    first.parent.mkdir()
    pack(first, env=os.environ | {"SOURCE_DATE_EPOCH": epoch})
    environment = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7"}
    pack(out, umask=0o077, env=os.environ | environment | {"SOURCE_DATE_EPOCH": epoch})
    one, two = (
        {
            path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in place.rglob("*")
            if path.is_file()
        }
        for place in (first.parent, out.parent)
    )
    assert one == two, sorted(set(one.items()) ^ set(two.items()))


def test_containerd_gets_whole_names_and_the_chart_asks_for_them(layout: Path) -> None:
    index = json.loads((layout / "index.json").read_text())
    names = [one["annotations"]["io.containerd.image.name"] for one in index["manifests"]]
    values = yaml.safe_load((REPO / "packaging/helm/sluice/values.yaml").read_text())
    asked = [
        f"{values['image']['registry']}/{values[part]['image']['repository']}:{VERSION}"
        for part in ("agent", "queue")
    ]
    assert names == asked
    assert all(name.count("/") >= 1 and ("." in name or "localhost" in name) for name in names)


def test_one_file_holds_the_layout(layout: Path) -> None:
    with tarfile.open(layout.with_suffix(".tar")) as tar:
        files = {one.name: one for one in tar if one.isfile()}
        assert files.keys() == {
            path.relative_to(layout).as_posix() for path in layout.rglob("*") if path.is_file()
        }
        index = tar.extractfile("index.json")
        assert index is not None
        assert index.read() == (layout / "index.json").read_bytes()
        assert {(one.uid, one.gid, one.uname) for one in files.values()} == {(0, 0, "")}


def test_the_simulator_is_carried_and_hides_no_driver(layout: Path, root: Path) -> None:
    assert (root / "usr/lib/sluice-sim/libcuda.so.1").is_file()
    assert os.access(root / "usr/bin/sluice-sim-node", os.X_OK)
    assert not (root / "etc/ld.so.conf.d/sluice-sim.conf").exists()
    listed = subprocess.run(
        ["chroot", root, "/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True
    ).stdout
    assert "libcuda" not in listed
    assert "libnvidia-ml" not in listed


def chroot(
    root: Path, config: dict[str, Any], *arguments: str, timeout_s: int = 60
) -> subprocess.CompletedProcess[str]:
    command = ["chroot", f"--userspec={config['User']}", root, config["Entrypoint"][0], *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
        env=dict(one.split("=", 1) for one in config["Env"]),
    )


@pytest.mark.parametrize("name", ["sluice-nodeagent", "sluice-queue"])
def test_the_commands_run_as_the_user_of_the_image(layout: Path, root: Path, name: str) -> None:
    _, config = images(layout)[f"{name}:{VERSION}"]
    done = chroot(root, config["config"], "--version")
    assert VERSION in done.stdout, done.stderr


def test_the_controller_serves_as_nobody_special(layout: Path, root: Path) -> None:
    _, image = images(layout)[f"sluice-queue:{VERSION}"]
    config = image["config"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = [
        *config["Entrypoint"][1:],
        "--socket",
        "/tmp/queue.sock",
        "--metrics-listen",
        f"127.0.0.1:{port}",
    ]
    command = [
        "chroot",
        f"--userspec={config['User']}",
        root,
        config["Entrypoint"][0],
        *arguments,
        "--database",
        "/var/lib/sluice-queue/queue.sqlite",
    ]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        env=dict(one.split("=", 1) for one in config["Env"]),
    ) as service:
        try:
            until(
                "the controller decides",
                lambda: answers(f"http://127.0.0.1:{port}/readyz", service),
            )
            asked = chroot(root, config, "web", "--server", "unix:/tmp/queue.sock")
            origin, _, ticket = asked.stdout.strip().partition("#ticket=")
            assert ticket, asked.stderr
            for file in ("", "front/app.js", "front/pages/overview.js", "front/style.css"):
                assert answers(origin + file, service), file
        finally:
            service.terminate()
        assert service.wait(30) == 0
    assert (root / "var/lib/sluice-queue/queue.sqlite").stat().st_uid == 64000


def answers(url: str, service: subprocess.Popen[str]) -> bool:
    assert service.poll() is None, service.stderr.read() if service.stderr else ""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_the_image_has_what_ebpf_needs_without_bcc(root: Path) -> None:
    code = (
        "from nodeagent import native; from nodeagent.adapters.ebpf import kernel; from nodeagent.adapters.ebpf.loaders import prebuilt;"
        "file = native.locate().bpf_object; kernel.load_libbpf();"
        "print(file.is_file(), file.with_name(prebuilt.OLD).is_file())"
    )
    done = subprocess.run(
        ["chroot", root, "/usr/bin/python3", "-I", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True\n", done.stderr
