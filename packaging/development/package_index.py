"""The package index that pip is configured to use: its address, the versions that pip resolves, and
the SHA-256 of each file of a version.

No address is written here: it comes from pip's settings, or else is pip's own default.
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
"""Keys of the index's address in pip's settings, in pip's order of precedence."""
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
"""Parts of the names of wheels for other systems than Linux with glibc on x86-64 and aarch64."""
DEFAULT: Final = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"


def name_of(requirement: str) -> str:
    """Name as the index spells it: lower case, one dash."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement.strip())
    if not found:
        raise ValueError(f"not a requirement: {requirement!r}")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def address(settings: str) -> str | None:
    """Address of the index in the output of `pip config list`; None if it has none."""
    named = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    for key in SETTINGS:
        if key in named:
            return str(ast.literal_eval(named[key])).rstrip("/")
    return None


def index() -> str:
    pip = (sys.executable, "-m", "pip", "config", "list")
    listed = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    own = (sys.executable, "-c", DEFAULT)
    return (
        address(listed)
        or subprocess.run(own, capture_output=True, text=True, check=True).stdout.strip()
    )


def resolved(*words: str) -> dict[str, str]:
    """Versions of all packages that `pip install WORDS` would install, by name. Raises SystemExit with
    pip's error."""
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
    """SHA-256 of a package's files by file name, from its page in the index (PEP 503)."""
    with urllib.request.urlopen(f"{index()}/{name_of(name)}/", timeout=120) as answer:
        page = answer.read().decode()
    links = re.findall(r'href="([^"#]+)#sha256=([0-9a-f]{64})"', page)
    return {unquote(url.rpartition("/")[2]): digest for url, digest in links}


def is_of(file: str, name: str, version: str) -> bool:
    """True if the file is a wheel or the source archive of that version."""
    if file.endswith(".whl"):
        project, of = file.split("-")[:2]
        return name_of(project) == name and of == version
    found = re.fullmatch(rf"(.+)-{re.escape(version)}\.(tar\.gz|zip)", file)
    return found is not None and name_of(found[1]) == name


def hashes_of(name: str, version: str, without: Sequence[str] = ()) -> list[str]:
    """Hashes of the version's files, except those whose names contain one of `without`."""
    found = {
        digest
        for file, digest in files_of(name).items()
        if is_of(file, name, version) and not any(part in file for part in without)
    }
    if not found:
        raise SystemExit(f"the index has no file of {name} {version}")
    return sorted(found)
