"""The RPM packages: the same split as the Debian ones, installed and erased with rpm itself, scriptlets and all."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.kit.places import BUILD, REPO
from tests.packages.debs import NAMES, NEXT, VERSION, built, contents, output
from tests.packages.machine import unpack

pytestmark = [
    pytest.mark.packages,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="rpm runs scriptlets in a root: needs root"),
]


@functools.cache
def rpms(version: str = VERSION, variant: str = "") -> dict[str, Path]:
    where = BUILD / "test-packages" / f"rpm-{version}{variant}"
    subprocess.run(
        [REPO / "packaging" / "release" / "rpm.sh", where],
        check=True,
        timeout=900,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "VERSION": version,
            "HOME": "/root",
            "WORK": f"{version}{variant}",
        },
        stdout=subprocess.DEVNULL,
    )
    return {path.name.rpartition(f"-{version}")[0]: path for path in where.glob("*.rpm")}


def files(rpm: Path) -> set[str]:
    return set(output("rpm", "-qpl", rpm).splitlines())


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """systemd and a shell for the scriptlets, and an empty database of rpm."""
    made = unpack("rpm-root")
    subprocess.run(["rpm", "--root", made, "--initdb"], check=True)
    # For systemd-tmpfiles.
    subprocess.run(["mount", "-t", "proc", "proc", made / "proc"], check=True)
    yield made
    subprocess.run(["umount", "-l", made / "proc"], check=True)
    shutil.rmtree(made, ignore_errors=True)


def rpm(root: Path, *arguments: str | Path) -> str:
    # --nodeps: what Debian's root has was not installed by rpm; the dependencies are compared by name below.
    done = subprocess.run(
        ["rpm", "--root", root, "--nodeps", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


DOCUMENTS = re.compile(r"/usr/share/(doc|lintian)(/|$)")


def common(paths: Iterable[str]) -> set[str]:
    """Files, documents aside, under names that both kinds of distribution share."""
    plain = {path.removesuffix("/") for path in paths} - {""}
    parents = {str(parent) for path in plain for parent in Path(path).parents}
    found = set()
    for path in plain - parents:
        if not DOCUMENTS.search(path):
            path = re.sub(r"/python3[^/]*/(dist|site)-packages/", "/python3/", path)
            found.add(path.replace("/usr/lib/systemd/", "/lib/systemd/"))
    return found


def test_the_files_are_those_of_the_debian_packages() -> None:
    for name in NAMES:
        assert common(files(rpms()[name])) == common(contents(built()[name])), name


def test_it_requires_what_the_debian_packages_depend_on() -> None:
    named = {"python3-yaml": "pyyaml"}
    for name in ("sluice-common", "sluice-nodeagent", "sluice-queue"):
        depends = output("dpkg-deb", "-f", built()[name], "Depends")
        wanted = {
            named.get(one, one.removeprefix("python3-")): floor
            for one, floor in re.findall(r"(python3-[\w-]+) \(>= ([\d.]+)\)", depends)
        }
        requires = output("rpm", "-qp", "--requires", rpms()[name])
        got = dict(re.findall(r"python3dist\(([\w-]+)\) >= ([\d.]+)", requires))
        assert got.keys() == wanted.keys()
        assert ("sluice-common" in requires) == (name != "sluice-common")
        assert ("libbpf" in requires) == ("libbpf" in depends) == (name == "sluice-nodeagent")
        assert all(
            float(".".join(got[k].split(".")[:2])) == float(".".join(wanted[k].split(".")[:2]))
            for k in got
        )


def test_nothing_may_depend_on_our_libraries() -> None:
    for package in rpms().values():
        assert "lib" not in re.sub(r"sluice-\w+", "", output("rpm", "-qp", "--provides", package))


def test_settings_are_kept_when_they_were_edited() -> None:
    for name, path in (
        ("sluice-nodeagent", "/etc/sluice/sluice.toml"),
        ("sluice-queue", "/etc/sluice/queue.toml"),
    ):
        flags = output("rpm", "-qp", "--qf", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", rpms()[name])
        assert f"{path} cn\n" in flags


def test_install_enables_the_services_and_makes_the_user(root: Path) -> None:
    said = rpm(root, "-i", *rpms().values())
    assert "failed" not in said
    for service in ("sluice", "sluice-queue"):
        assert (root / f"usr/lib/systemd/system/{service}.service").is_file()
        state = subprocess.run(
            ["systemctl", f"--root={root}", "is-enabled", service],
            capture_output=True,
            text=True,
            check=False,
        )
        assert state.stdout.strip() == "enabled", state
    assert "sluice-queue:" in (root / "etc/passwd").read_text()
    assert (root / "var/lib/sluice-libraries").is_dir()
    assert rpm(root, "-V", *NAMES).strip() == ""


def test_the_installed_command_runs(root: Path) -> None:
    site = next((root / "usr/lib").glob("python3.*/site-packages"))
    done = subprocess.run(
        [
            "chroot",
            root,
            "/usr/bin/env",
            f"PYTHONPATH=/{site.relative_to(root)}",
            "python3",
            "-m",
            "nodeagent.cli",
            "version",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == f"sluice {VERSION}", done.stderr


def test_upgrade_keeps_what_was_edited_and_leaves_nothing_of_the_old_version(root: Path) -> None:
    settings = root / "etc/sluice/sluice.toml"
    settings.write_text(settings.read_text() + "# edited\n")
    rpm(root, "-U", *rpms(NEXT).values())
    assert settings.read_text().endswith("# edited\n")
    assert [path.name for path in (root / "usr/lib/sluice").iterdir()] == [NEXT]


def test_erasing_leaves_no_file_and_no_enabled_service(root: Path) -> None:
    installed = set().union(*(files(package) for package in rpms(NEXT).values()))
    (root / "run/sluice/grants").mkdir(parents=True, exist_ok=True)
    rpm(root, "-e", *NAMES)
    left = {
        path
        for path in installed
        if (root / path.lstrip("/")).is_symlink() or (root / path.lstrip("/")).is_file()
    }
    assert left == set()
    assert not (root / "run/sluice").exists()
    assert list((root / "etc/systemd/system").rglob("*sluice*")) == []


def test_a_second_build_elsewhere_is_the_same_to_the_byte() -> None:
    digests = [
        {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in made.items()}
        for made in (rpms(), rpms(variant="-again"))
    ]
    assert digests[0] == digests[1]
