"""The bill of materials of built packages, CycloneDX 1.5 JSON on standard output.

`python packaging/release/sbom.py DIRECTORY`: each .deb and .rpm there with its hash and what it depends on,
and what is copied into it from elsewhere (packaging/release/vendor.txt). Deterministic: the time is
SOURCE_DATE_EPOCH, the serial number is made of the contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VENDOR: Final = Path(__file__).resolve().with_name("vendor.txt")
VENDORED_INTO: Final = "sluice-nodeagent"
LICENSES: Final = {"nvidia-ml-py": "BSD-3-Clause"}


def output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def deb(path: Path) -> tuple[str, str, str, list[str]]:
    """Name, version, architecture, dependencies."""
    fields = dict(
        line.split(": ", 1)
        for line in output("dpkg-deb", "-f", path, "Package", "Version", "Architecture", "Depends")
        .replace("\n ", " ")
        .splitlines()
        if ": " in line
    )
    depends = [one.strip() for one in fields.get("Depends", "").split(",") if one.strip()]
    return fields["Package"], fields["Version"], fields["Architecture"], depends


def rpm(path: Path) -> tuple[str, str, str, list[str]]:
    name, version, arch = output(
        "rpm", "-qp", "--qf", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}", path
    ).split()
    wanted = {
        one.strip()
        for one in output("rpm", "-qp", "--requires", path).splitlines()
        if not one.startswith("rpmlib(")
    }
    return name, version, arch, sorted(wanted)


def packages(directory: Path) -> Iterator[dict[str, Any]]:
    for path in sorted([*directory.glob("*.deb"), *directory.glob("*.rpm")]):
        kind = path.suffix[1:]
        name, version, arch, depends = deb(path) if kind == "deb" else rpm(path)
        yield {
            "type": "application",
            "bom-ref": f"{kind}:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:{kind}/sluice/{name}@{version}?arch={arch}",
            "licenses": [{"license": {"id": "Apache-2.0"}}],
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}
            ],
            "properties": [{"name": "sluice:depends", "value": one} for one in depends],
        }


def vendored() -> Iterator[dict[str, Any]]:
    text = VENDOR.read_text(encoding="utf-8")
    for name, version, digest in re.findall(
        r"^([A-Za-z0-9_.-]+)==(\S+)[\s\\]*--hash=sha256:([0-9a-f]{64})", text, re.MULTILINE
    ):
        yield {
            "type": "library",
            "bom-ref": f"pypi:{name}",
            "name": name,
            "version": version,
            "purl": f"pkg:pypi/{name}@{version}",
            "licenses": [{"license": {"id": LICENSES[name]}}],
            "hashes": [{"alg": "SHA-256", "content": digest}],
        }


def bill(directory: Path, epoch: int) -> dict[str, Any]:
    ours, theirs = list(packages(directory)), list(vendored())
    if not ours:
        raise SystemExit(f"sbom: no package in {directory}")
    digest = hashlib.sha256(json.dumps([ours, theirs], sort_keys=True).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32])}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {
                "type": "application",
                "bom-ref": "sluice",
                "name": "sluice",
                "version": ours[0]["version"],
            },
        },
        "components": ours + theirs,
        "dependencies": [
            {"ref": "sluice", "dependsOn": [one["bom-ref"] for one in ours]},
            *(
                {"ref": one["bom-ref"], "dependsOn": [lib["bom-ref"] for lib in theirs]}
                for one in ours
                if one["name"] == VENDORED_INTO
            ),
        ],
    }


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: sbom.py DIRECTORY", file=sys.stderr)
        return 2
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    print(json.dumps(bill(Path(arguments[0]), epoch), indent=2, sort_keys=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
