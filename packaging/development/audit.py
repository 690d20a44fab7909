"""Checks what a development environment and a bill of materials have in them against what is there.

`audit.py environment VENV`: each package of VENV is one of packaging/development/requirements-dev.txt, in its version; known
vulnerabilities are asked of OSV where it can be reached; otherwise the output states that it was not.
`audit.py bill FILE ROOT`: each component of the bill that is installed below ROOT (/ for this machine) is installed in
its version, and what was copied in from elsewhere is the file the bill names by its hash.

Exit status 1: something is not as it should be. `--required` makes an unreachable OSV a failure as well.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lock import LOCK, locked
from package_index import name_of

OSV: Final = "https://api.osv.dev/v1/querybatch"
OF_PYTHON_ITSELF: Final = frozenset({"pip", "setuptools", "wheel"})
"""Packages that `python -m venv` installs itself."""


def installed(venv: Path) -> dict[str, str]:
    paths = [str(one) for one in venv.glob("lib/python3*/site-packages")]
    found = importlib.metadata.distributions(path=paths)
    return {name_of(one.metadata["Name"]): one.version for one in found}


def differences(there: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """One line for each package that differs from the list."""
    lines = []
    for name, version in sorted(there.items()):
        if name in OF_PYTHON_ITSELF:
            continue
        if name not in wanted:
            lines.append(f"{name} {version} is not in the list")
        elif wanted[name] != version:
            lines.append(f"{name} is {version}, the list has {wanted[name]}")
    return lines


def vulnerabilities(there: Mapping[str, str], url: str = OSV) -> list[str]:
    """Known vulnerabilities of packages. Raises OSError if OSV cannot be reached."""
    names = sorted(there)
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": there[name]} for name in names
    ]
    request = urllib.request.Request(url, json.dumps({"queries": queries}).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        results = json.load(answer)["results"]
    return [
        f"{name} {there[name]}: {vulnerability['id']}"
        for name, result in zip(names, results, strict=True)
        for vulnerability in result.get("vulns", [])
    ]


def bill_differences(bill: Mapping[str, Any], root: Path) -> list[str]:
    lines = []
    for one in bill["components"]:
        if one["bom-ref"].startswith("deb:"):
            done = subprocess.run(
                [
                    *("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Version}"),
                    one["name"],
                ],
                capture_output=True,
                text=True,
            )
            if done.returncode == 0 and done.stdout and done.stdout != one["version"]:
                lines.append(f"{one['name']} is {done.stdout}, the bill has {one['version']}")
            elif done.returncode or not done.stdout:
                lines.append(f"{one['name']} is not installed")
    return lines + _copied(bill, root)


def _copied(bill: Mapping[str, Any], root: Path) -> list[str]:
    """pynvml.py as it is in the wheel that the bill names."""
    lines = []
    vendored = {
        one["name"]: one for one in bill["components"] if one["bom-ref"].startswith("pypi:")
    }
    wheels = Path(__file__).resolve().parents[2] / "build" / "vendor"
    for name, one in vendored.items():
        digest = one["hashes"][0]["content"]
        wheel = next(
            (
                w
                for w in wheels.glob("*.whl")
                if hashlib.sha256(w.read_bytes()).hexdigest() == digest
            ),
            None,
        )
        if wheel is None:
            lines.append(f"{name}: the wheel with the hash of the bill is not in {wheels}")
            continue
        with zipfile.ZipFile(wheel) as archive:
            original = archive.read("pynvml.py")
        copies = list(root.glob("usr/lib/sluice/*/vendor/pynvml.py"))
        if not copies:
            lines.append(f"{name} is not installed")
        lines += [
            f"{copy} is not the file of {wheel.name}"
            for copy in copies
            if copy.read_bytes() != original
        ]
    return lines


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="audit.py", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    environment = kinds.add_parser("environment")
    environment.add_argument("venv", type=Path)
    environment.add_argument("--required", action="store_true")
    environment.add_argument("--osv", default=OSV)
    bill = kinds.add_parser("bill")
    bill.add_argument("file", type=Path)
    bill.add_argument("root", type=Path)
    options = parser.parse_args(arguments)
    if options.kind == "bill":
        lines = bill_differences(json.loads(options.file.read_text()), options.root)
        print("\n".join(lines) or "audit: the installed packages match the bill of materials")
        return 1 if lines else 0
    wanted = {name: version for name, (version, _) in locked(LOCK.read_text()).items()}
    there = installed(options.venv)
    lines = differences(there, wanted)
    try:
        lines += vulnerabilities(there, options.osv)
        osv = "checked for known vulnerabilities"
    except (OSError, ValueError, KeyError) as error:
        osv = f"OSV could not be reached ({error}): not checked for vulnerabilities"
        if options.required:
            lines.append(osv)
    print("\n".join([*lines, f"audit: {len(there)} packages; {osv}"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
