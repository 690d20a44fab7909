"""Writes packaging/development/requirements-dev.txt: every package of the development environment, by version and hash.

`python packaging/development/lock.py` resolves what pyproject.toml asks for with pip, for the Python that runs it and for
the other supported ones, and takes the hashes of those versions' files from the package index, so that one list holds for
each supported Python and architecture; wheels for others are left out. What is in the list already stays at its version
unless pyproject.toml asks for another: `--upgrade` resolves everything again. setup.sh beside it installs nothing
else.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

from package_index import OTHER_SYSTEMS, hashes_of, name_of, resolved

REPO: Final = Path(__file__).resolve().parents[2]
LOCK: Final = REPO / "packaging" / "development" / "requirements-dev.txt"
PYTHONS: Final = ("3.11", "3.12", "3.13")
"""Debian 12's, Ubuntu 24.04's, Debian 13's."""
OTHER_PYTHONS: Final = (
    "-pp3",
    "graalpy",
    "-cp2",
    *(f"-cp3{minor}-cp3{minor}" for minor in (6, 7, 8, 9, 10, 14, 15)),
    "-cp313-cp313t",
)
"""In the names of wheels for other Pythons: PyPy, older and newer ones, those without a lock."""
HEAD: Final = """\
# Written by packaging/development/lock.py from pyproject.toml; do not edit. The source of each version and its wheels for all
# supported Pythons and architectures, so that one list holds for them.
"""


def wanted() -> list[str]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"].get("optional-dependencies", {}).values()
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    asked += [one for group in extras for one in group]
    return [one for one in asked if isinstance(one, str)]


def locked(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """name -> (version, hashes)."""
    found = {}
    for block in re.split(r"\n(?=\S)", text):
        match = re.match(r"([A-Za-z0-9._-]+)==(\S+)", block)
        if match:
            hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
            found[name_of(match[1])] = (match[2], hashes)
    return found


def needs(requirements: list[str], known: dict[str, str], python: str) -> dict[str, str]:
    """name -> version of everything that is needed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("".join(f"{name}=={version}\n" for name, version in known.items()))
        constraints.flush()
        words = ["-c", constraints.name]
        if python != f"{sys.version_info.major}.{sys.version_info.minor}":
            words += ["--python-version", python, "--only-binary=:all:"]
        try:
            return resolved(*words, *requirements)
        except SystemExit as refused:
            raise SystemExit(f"lock: Python {python}: {refused}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="lock.py", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="do not keep the versions there are")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is missing")
    options = parser.parse_args()
    asked = wanted()
    text = LOCK.read_text(encoding="utf-8") if LOCK.exists() else ""
    if options.check:
        missing = sorted({name_of(one) for one in asked} - locked(text).keys())
        if missing:
            print(
                f"lock: {LOCK.name} lacks {', '.join(missing)}: run packaging/development/lock.py"
            )
        return 1 if missing else 0
    versions: dict[str, str] = {}
    if not options.upgrade:
        versions = {name: version for name, (version, _) in locked(text).items()}
    needed: dict[str, str] = {}
    for python in PYTHONS:
        try:
            found = needs(asked, versions | needed, python)
        except SystemExit:
            if needed or not versions:
                raise
            versions = {}  # pyproject.toml has changed since
            found = needs(asked, {}, python)
        needed |= found
    lines = [HEAD]
    for name, version in sorted(needed.items()):
        hashes = " \\\n".join(
            f"    --hash=sha256:{one}"
            for one in hashes_of(name, version, OTHER_SYSTEMS + OTHER_PYTHONS)
        )
        lines.append(f"{name}=={version} \\\n{hashes}\n")
    LOCK.write_text("".join(lines), encoding="utf-8")
    print(f"lock: {len(needed)} packages for Python {', '.join(PYTHONS)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
