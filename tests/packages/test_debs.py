"""The Debian packages: complete, versioned, reproducible, clean."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.places import REPO
from tests.packages.debs import NAMES, VERSION, built, contents, output

pytestmark = [pytest.mark.packages, pytest.mark.timeout(1800)]
FRONT = {
    path.relative_to(REPO).as_posix()
    for path in (REPO / "sluicecommon" / "page" / "front").rglob("*")
    if path.is_file()
}
"""Files of the web page: not Python, so no other test would miss them."""
assert len(FRONT) > 10


@pytest.fixture(scope="module")
def debs() -> dict[str, Path]:
    return built()


def test_three_packages_of_the_version_in_version(debs: dict[str, Path]) -> None:
    assert sorted(debs) == sorted(NAMES)
    for deb in debs.values():
        assert output("dpkg-deb", "-f", deb, "Version").strip() == VERSION


def test_libraries_lie_below_their_version_and_the_package_leads_there(
    debs: dict[str, Path],
) -> None:
    files = contents(debs["sluice-nodeagent"])
    for path in (
        "shim/libcuda.so.1",
        "shim/libnvidia-ml.so.1",
        "preload/libsluice.so",
        "libsluice_region.so",
        "vendor/pynvml.py",
        "proto/kubelet.binpb",
        "bpf/watch.bpf.o",
        "bpf/watch.old.bpf.o",
    ):
        assert f"/usr/lib/sluice/{VERSION}/{path}" in files
    assert files["/usr/lib/python3/dist-packages/nodeagent/native"].startswith("l")
    listing = output("dpkg-deb", "-c", debs["sluice-nodeagent"])
    assert f"nodeagent/native -> ../../../sluice/{VERSION}\n" in listing


def test_each_package_has_what_is_its_own(debs: dict[str, Path]) -> None:
    common, node, queue, sim = (contents(debs[name]) for name in NAMES)
    assert "/usr/lib/python3/dist-packages/sluicecommon/kubernetes/client.py" in common
    assert {f"/usr/lib/python3/dist-packages/{one}" for one in FRONT} <= common.keys()
    assert {
        "/usr/bin/sluice",
        "/lib/systemd/system/sluice.service",
        "/lib/systemd/system/sluice.slice",
        "/etc/sluice/sluice.toml",
        "/usr/lib/tmpfiles.d/sluice.conf",
        "/usr/share/man/man1/sluice.1.gz",
    } <= node.keys()
    assert {
        "/usr/bin/kubectl-sluice",
        "/usr/bin/sluice-queue",
        "/lib/systemd/system/sluice-queue.service",
        "/etc/sluice/queue.toml",
        "/usr/lib/sysusers.d/sluice-queue.conf",
    } <= queue.keys()
    assert {
        "/usr/lib/sluice-sim/libcuda.so.1",
        "/usr/lib/sluice-sim/libnvidia-ml.so.1",
        "/usr/bin/sluice-sim-job",
    } <= sim.keys()
    shared = {path for path in node.keys() & queue.keys() if not path.endswith("/")}
    assert shared == set()
    assert [
        path
        for path in node
        if "sim" in path.split("/") or "/tests/" in path or "__pycache__" in path
    ] == []
    assert [
        path
        for path in node | queue | sim
        if path.endswith((".so", ".pyc")) and "libsluice" not in path
    ] == []


def test_no_file_may_be_written_by_others(debs: dict[str, Path]) -> None:
    for deb in debs.values():
        loose = [path for path, mode in contents(deb).items() if mode[0] != "l" and mode[8] == "w"]
        assert loose == []


def test_settings_are_conffiles_and_survive_an_upgrade(
    debs: dict[str, Path], tmp_path: Path
) -> None:
    for name, want in (
        ("sluice-nodeagent", "/etc/sluice/sluice.toml"),
        ("sluice-queue", "/etc/sluice/queue.toml"),
    ):
        subprocess.run(["dpkg-deb", "-e", debs[name], tmp_path / name], check=True)
        assert (tmp_path / name / "conffiles").read_text().split() == [want]


def imports(source: Path) -> set[str]:
    """Top-level modules; relative imports are our own."""
    found = set()
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_it_depends_on_what_it_imports(debs: dict[str, Path]) -> None:
    """Dependencies under the distribution's names; the standard library and our own packages
    aside."""
    modules = {
        "grpc": "python3-grpcio",
        "google": "python3-protobuf",
        "yaml": "python3-yaml",
        "pyroute2": "python3-pyroute2",
        "psutil": "python3-psutil",
        "aiohttp": "python3-aiohttp",
        "sluicecommon": "sluice-common",
    }
    ours = {"nodeagent", "queuecontroller", "sluicecommon", "pynvml", "bcc"}
    for package, deb in (
        ("nodeagent", "sluice-nodeagent"),
        ("queuecontroller", "sluice-queue"),
        ("sluicecommon", "sluice-common"),
    ):
        depends = output("dpkg-deb", "-f", debs[deb], "Depends")
        imported = set().union(*(imports(path) for path in (REPO / package).rglob("*.py")))
        foreign = (imported & modules.keys()) - {package}
        unknown = imported - modules.keys() - ours - sys.stdlib_module_names
        assert unknown == set()
        assert [modules[name] for name in foreign if modules[name] not in depends] == []


def test_lintian_finds_nothing(debs: dict[str, Path]) -> None:
    changes = next(debs["sluice-sim"].parent.glob("*.changes"))
    subprocess.run(
        [REPO / "packaging" / "fetch" / "tools.sh", "lintian=lintian"], check=True, cwd=REPO
    )
    found = subprocess.run(
        [
            "lintian",
            "--allow-root",
            "--fail-on",
            "error,warning",
            "--tag-display-limit",
            "0",
            changes,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout == ""


def test_a_second_build_elsewhere_is_the_same_to_the_byte(debs: dict[str, Path]) -> None:
    again = built(variant="-again")
    assert {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in again.items()} == {
        n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in debs.items()
    }


def test_the_bill_of_materials_names_every_package_with_its_hash(debs: dict[str, Path]) -> None:
    directory = debs["sluice-sim"].parent
    bill = json.loads(output(sys.executable, REPO / "packaging" / "release" / "sbom.py", directory))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    hashes = {one["name"]: one["hashes"][0]["content"] for one in bill["components"]}
    for name, deb in debs.items():
        assert hashes[name] == hashlib.sha256(deb.read_bytes()).hexdigest()
    assert hashes["nvidia-ml-py"] in (REPO / "packaging" / "release" / "vendor.txt").read_text()
    refs = {one["bom-ref"] for one in bill["components"]} | {"sluice"}
    assert {ref for row in bill["dependencies"] for ref in [row["ref"], *row["dependsOn"]]} <= refs
