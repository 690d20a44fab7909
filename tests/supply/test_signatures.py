"""The checksums of a release: what is signed is what was there, and nothing else passes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.kit.places import REPO

CHECKSUMS, VERIFY = (
    REPO / "packaging" / "release" / "checksums.sh",
    REPO / "packaging" / "release" / "verify.sh",
)
pytestmark = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen (openssh-client) signs the checksums"
)


def key(directory: Path, name: str) -> Path:
    path = directory / name
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", path], check=True
    )
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    root = tmp_path / "release"
    (root / "deb").mkdir(parents=True)
    (root / "deb" / "a b.deb").write_bytes(b"one")
    (root / "notes").write_bytes(b"two")
    signing = key(tmp_path, "releaser")
    public = signing.with_suffix(".pub").read_text()
    (tmp_path / "allowed").write_text(f'releaser namespaces="sluice-release" {public}')
    subprocess.run([CHECKSUMS, root, signing], check=True)
    return root


def verify(release: Path, signer: str = "releaser") -> subprocess.CompletedProcess[str]:
    words = [VERIFY, release, release.parent / "allowed", signer]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def test_what_was_signed_passes(release: Path) -> None:
    done = verify(release)
    assert (done.returncode, done.stdout) == (0, "verify: 2 files, signed by releaser\n"), (
        done.stderr
    )


def test_a_second_time_the_sums_are_the_same(release: Path) -> None:
    before = (release / "SHA256SUMS").read_bytes()
    subprocess.run([CHECKSUMS, release], check=True, capture_output=True)
    assert (release / "SHA256SUMS").read_bytes() == before
    assert "no SHA256SUMS.sig" in verify(release).stderr, "not signed any more"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda root: (root / "notes").write_bytes(b"tWo"), "not what was released"),
        (lambda root: (root / "notes").unlink(), "not what was released"),
        (lambda root: (root / "more").write_bytes(b"x"), "not part of the release: more"),
        (lambda root: (root / "SHA256SUMS").write_text("0" * 64 + "  notes\n"), "not signed by"),
        (lambda root: (root / "SHA256SUMS.sig").write_text("x"), "not signed by"),
    ],
    ids=["changed", "gone", "another one", "other sums", "no signature"],
)
def test_anything_else_is_refused(release: Path, change, says: str) -> None:  # type: ignore[no-untyped-def]
    change(release)
    done = verify(release)
    assert done.returncode == 1
    assert says in done.stderr


def test_another_signer_is_refused(release: Path) -> None:
    assert verify(release, "somebody").returncode == 1
    other = key(release.parent, "other")
    subprocess.run([CHECKSUMS, release, other], check=True)
    assert verify(release).returncode == 1


def test_a_release_is_not_made_beside_what_is_none(tmp_path: Path) -> None:
    """Its checksums were over build directories, too."""
    (tmp_path / "deb").mkdir()
    (tmp_path / "notes.txt").touch()
    command = [REPO / "packaging" / "release" / "packages.sh", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "notes.txt is no part of a release" in done.stderr
    assert not list((tmp_path / "deb").iterdir())


def test_the_rendered_chart_is_part_of_a_release(tmp_path: Path) -> None:
    release = REPO / "packaging" / "release"
    subprocess.run([release / "manifest.sh", tmp_path], check=True, timeout=300)
    if not (tmp_path / "sluice.yaml").exists():
        pytest.skip("there is no helm, and no Go to build it")
    kinds = {one["kind"] for one in yaml.safe_load_all((tmp_path / "sluice.yaml").read_text())}
    assert {"DaemonSet", "Deployment", "ServiceAccount"} <= kinds
    (tmp_path / "tainted").touch()
    command = [release / "packages.sh", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "tainted is no part of a release" in done.stderr, "sluice.yaml comes first and is one"
