"""Writes packaging/development/requirements-dev.txt: every package of the development environment, by version and hash; and
requirements-packages.txt: what `make test-packages` adds to it.

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
from typing import Any, Final

from package_index import OTHER_SYSTEMS, hashes_of, name_of, resolved

REPO: Final = Path(__file__).resolve().parents[2]
HERE: Final = REPO / "packaging" / "development"
LOCK: Final = HERE / "requirements-dev.txt"
MORE: Final = HERE / "requirements-packages.txt"
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


def project() -> dict[str, Any]:
    return tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))


def groups(name: str) -> list[str]:
    return [one for one in project()["dependency-groups"][name] if isinstance(one, str)]


def wanted() -> list[str]:
    ours = project()["project"]
    extras = ours.get("optional-dependencies", {}).values()
    return [*ours["dependencies"], *groups("dev"), *(one for group in extras for one in group)]


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


def check(lock: Path, asked: list[str]) -> bool:
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    missing = sorted({name_of(one) for one in asked} - locked(text).keys())
    if missing:
        print(f"lock: {lock.name} lacks {', '.join(missing)}: run packaging/development/lock.py")
    return not missing


def write(lock: Path, asked: list[str], fixed: dict[str, str], upgrade: bool) -> dict[str, str]:
    """name -> version of what was locked. `fixed`: versions of another list, which are not written again."""
    text = lock.read_text(encoding="utf-8") if lock.exists() else ""
    versions = {} if upgrade else {name: version for name, (version, _) in locked(text).items()}
    needed: dict[str, str] = {}
    for python in PYTHONS:
        try:
            found = needs(asked, fixed | versions | needed, python)
        except SystemExit:
            if needed or not versions:
                raise
            versions = {}  # pyproject.toml has changed since
            found = needs(asked, fixed, python)
        needed |= found
    lines = [HEAD]
    for name, version in sorted(needed.items()):
        if name in fixed:
            continue
        hashes = " \\\n".join(
            f"    --hash=sha256:{one}"
            for one in hashes_of(name, version, OTHER_SYSTEMS + OTHER_PYTHONS)
        )
        lines.append(f"{name}=={version} \\\n{hashes}\n")
    lock.write_text("".join(lines), encoding="utf-8")
    print(f"lock: {lock.name}: {len(lines) - 1} packages for Python {', '.join(PYTHONS)}")
    return needed


def main() -> int:
    parser = argparse.ArgumentParser(prog="lock.py", description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="do not keep the versions there are")
    parser.add_argument("--check", action="store_true", help="write nothing; say what is missing")
    parser.add_argument("--packages", action="store_true", help=f"{MORE.name} alone")
    options = parser.parse_args()
    asked, more = wanted(), groups("packages")
    if options.check:
        return 0 if all([check(LOCK, asked), check(MORE, more)]) else 1
    if options.packages:
        known = locked(LOCK.read_text(encoding="utf-8"))
        needed = {name: version for name, (version, _) in known.items()}
    else:
        needed = write(LOCK, asked, {}, options.upgrade)
    write(MORE, more, needed, options.upgrade)
    return 0


if __name__ == "__main__":
    sys.exit(main())
