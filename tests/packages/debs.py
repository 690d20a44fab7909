"""Debian packages as tests look at them; built once per version."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.kit.places import BUILD, REPO

NAMES = ("sluice-common", "sluice-nodeagent", "sluice-queue", "sluice-sim")
VERSION = (REPO / "VERSION").read_text().strip()
NEXT = "99.0.0"
"""The version that upgrades go to."""


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@functools.cache
def built(version: str = VERSION, variant: str = "") -> dict[str, Path]:
    """Builds it, by name of the package. `variant` builds it again, elsewhere."""
    where = BUILD / "test-packages" / (f"deb-{version}{variant}")
    subprocess.run(
        [REPO / "packaging" / "release" / "deb.sh", where],
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
    return {path.name.partition("_")[0]: path for path in where.glob("*.deb")}


def contents(deb: Path) -> dict[str, str]:
    """Path without the leading dot: the mode as `ls` writes it."""
    rows = (line.split(None, 5) for line in output("dpkg-deb", "-c", deb).splitlines())
    return {row[5].removeprefix(".").partition(" -> ")[0]: row[0] for row in rows}
