"""Every runtime dependency is imported by the product, and each package requires what it imports and nothing else."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from functools import cache

import pytest

from tests.kit.places import REPO

PACKAGES = {
    "sluice-nodeagent": "nodeagent",
    "sluice-queue": "queuecontroller",
    "sluice-common": "sluicecommon",
}
MODULES = {
    "nvidia-ml-py": "pynvml",
    "grpcio": "grpc",
    "protobuf": "google",
    "pyyaml": "yaml",
}
"""Modules whose name is not their distribution's."""
BROUGHT = "nvidia-ml-py"
"""The packages bring it (packaging/release/vendor.txt), so none requires it."""


def module_of(distribution: str) -> str:
    name = distribution.lower()
    return MODULES.get(name, name.replace("-", "_"))


@cache
def imported(package: str) -> frozenset[str]:
    """Top-level modules that a package imports anywhere."""
    found: set[str] = set()
    for path in sorted((REPO / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.partition(".")[0])
    return frozenset(found)


def runtime() -> list[str]:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    return [re.split(r"[<>=~! ]", one)[0] for one in project["dependencies"]]


def debian(package: str) -> set[str]:
    """The modules of what a Debian package depends on."""
    text = (REPO / "packaging" / "debian" / "control").read_text()
    (stanza,) = re.findall(
        rf"^Package: {package}\n(.*?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL
    )
    (depends,) = re.findall(r"^Depends:\n((?: .*\n?)+)", stanza, re.MULTILINE)
    names = re.findall(r"python3-([\w-]+)", depends)
    return {module_of(name) for name in names}


def rpm(package: str) -> set[str]:
    """The modules of what an RPM package requires."""
    text = (REPO / "packaging" / "rpm" / "sluice.spec").read_text()
    name = package.removeprefix("sluice-")
    (section,) = re.findall(
        rf"^%package {name}\n(.*?)^%description", text, re.MULTILINE | re.DOTALL
    )
    return {module_of(one) for one in re.findall(r"python3dist\(([\w-]+)\)", section)}


@pytest.mark.parametrize("distribution", runtime())
def test_every_runtime_dependency_is_imported(distribution: str) -> None:
    module = module_of(distribution)
    assert any(module in imported(package) for package in PACKAGES.values())


@pytest.mark.parametrize("read", [debian, rpm], ids=["deb", "rpm"])
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_requires_what_it_imports_and_nothing_else(
    read: Callable[[str], set[str]], package: str
) -> None:
    foreign = {module_of(one) for one in runtime() if one != BROUGHT}
    assert read(package) == imported(PACKAGES[package]) & foreign


def test_the_packages_agree() -> None:
    for package in PACKAGES:
        assert debian(package) == rpm(package)
