"""`clients_pin.py IN OUT`: the newest versions of what IN names and of all they need, each with the digests of its files.

pip resolves; the index tells the digests of every file of a version, so that the pins hold on any Python it is made for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

INDEX = "https://pypi.org/simple"
FILE = re.compile(r"/([^/\"#]+)#sha256=([0-9a-f]{64})")
OTHERS = ("macosx", "musllinux", "win32", "win_")


def index() -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip().rstrip("/") or INDEX


def resolved(wanted: Path) -> dict[str, str]:
    """name -> version."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"),
                *("--report", report.name, "-r", str(wanted)),
            ],
            check=True,
        )
        found = json.loads(Path(report.name).read_text())["install"]
    return {one["metadata"]["name"].lower(): one["metadata"]["version"] for one in found}


def digests(name: str, version: str) -> list[str]:
    """Of the version's files for Linux on x86-64, and of its source."""
    with urllib.request.urlopen(f"{index()}/{name.replace('_', '-')}/", timeout=60) as answer:
        page = answer.read().decode()
    spelled = (f"{name.replace('-', '_')}-{version}", f"{name}-{version}")
    found = set()
    for file, digest in FILE.findall(page):
        mine = file.lower().startswith(spelled) and not any(other in file for other in OTHERS)
        if mine and (file.endswith(("any.whl", "x86_64.whl", ".tar.gz"))):
            found.add(digest)
    return sorted(found)


def main() -> None:
    wanted, out = Path(sys.argv[1]), Path(sys.argv[2])
    lines = [f"# Made of {wanted.name} by packaging/clients-tool.sh --pin: every file's digest."]
    for name, version in sorted(resolved(wanted).items()):
        files = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests(name, version))
        lines.append(f"{name}=={version}{files}")
    out.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
