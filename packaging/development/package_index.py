"""The package index as pip is set up to use it: where it is, what it resolves, the SHA-256 of every file of a version.

No address is written here: pip's settings say which index it is, or else pip's own default does.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

SETTINGS: Final = (":env:.index-url", "install.index-url", "site.index-url", "global.index-url")
"""In the order in which pip obeys them."""
OTHER_SYSTEMS: Final = (
    "macosx",
    "musllinux",
    "win32",
    "win_",
    "ppc64",
    "i686",
    "s390x",
    "armv7l",
    "riscv64",
)
"""In the names of wheels for other systems than Linux with glibc on x86-64 and aarch64."""
DEFAULT: Final = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


def name_of(requirement: str) -> str:
    """Name as the index spells it: lower case, one dash."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    if not found:
        raise ValueError(f"no requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def address(settings: str) -> str | None:
    """The index that `pip config list` names, None = none."""
    named = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    for key in SETTINGS:
        if key in named:
            return str(ast.literal_eval(named[key])).rstrip("/")
    return None


def index() -> str:
    pip = (sys.executable, "-m", "pip", "config", "list")
    told = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    own = (sys.executable, "-c", DEFAULT)
    return (
        address(told)
        or subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()
    )


def resolved(*words: str) -> dict[str, str]:
    """name -> version of everything that `pip install WORDS` would install. Raises SystemExit with pip's reason."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), *words]
        if "--python-version" in words:
            command += ["--target", scratch]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"pip: {done.stderr.strip()}")
        answer = json.loads(report.read_text(encoding="utf-8"))
    pairs = [(one["metadata"]["name"], one["metadata"]["version"]) for one in answer["install"]]
    return {name_of(name): version for name, version in pairs}


def files_of(name: str) -> dict[str, str]:
    """File name -> SHA-256, from the page of the package in the index (PEP 503)."""
    with urllib.request.urlopen(f"{index()}/{name_of(name)}/", timeout=120) as answer:
        page = answer.read().decode()
    links = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page)
    return {unquote(url.rpartition("/")[2]): digest for url, digest in links}


def is_of(file: str, name: str, version: str) -> bool:
    """A wheel or the source of that version."""
    if file.endswith(".whl"):
        project, of = file.split("-")[:2]
        return name_of(project) == name and of == version
    found = re.fullmatch(rf"(.+)-{re.escape(version)}\.(tar\.gz|zip)", file)
    return found is not None and name_of(found[1]) == name


def hashes_of(name: str, version: str, without: Sequence[str] = ()) -> list[str]:
    """Hashes of the version's files; `without`: those whose names have one of these in them are
    left out."""
    found = {
        digest
        for file, digest in files_of(name).items()
        if is_of(file, name, version) and not any(part in file for part in without)
    }
    if not found:
        raise SystemExit(f"the index has no file of {name} {version}")
    return sorted(found)
