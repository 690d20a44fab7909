"""HAMi's formats are in one package: each name is written once, and both services know each key."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest

from nodeagent.settings import hami as node_settings
from queuecontroller.gpushares.vendors.config import read_device_config
from sluicecommon.hami import names
from sluicecommon.hami.documents import HamiPart, PartKind
from sluicecommon.hami.sections import NODE_KEYS, NVIDIA_KEYS, SECTION_KEYS, VENDORS
from sluicecommon.settings import ConfigError
from tests.kit.places import REPO

NAMES: Final = {
    value
    for value in vars(names).values()
    if isinstance(value, str) and value.startswith(("hami.io/", "nvidia.com/"))
} - {names.GPU}  # This name is NVIDIA's own, also the kind of its CDI devices.
UNKNOWN: Final = "no such key is known here"


def texts(tree: ast.Module) -> Iterator[str]:
    """Texts in the code, without docstrings."""
    prose = {
        id(one.value)
        for one in ast.walk(tree)
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    }
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in prose:
            yield one.value


def test_each_name_is_written_once() -> None:
    found: Counter[str] = Counter()
    for package in ("nodeagent", "queuecontroller", "sluicecommon"):
        for path in (REPO / package).rglob("*.py"):
            found.update(one for one in texts(ast.parse(path.read_text())) if one in NAMES)
    assert found == dict.fromkeys(NAMES, 1)


def complaints_of_the_node(kind: PartKind, document: object) -> str:
    part = HamiPart(kind, "f", document)  # type: ignore[arg-type]
    try:
        return "".join(node_settings.read([part], "n1").warnings)
    except ConfigError as error:
        return str(error)


def complaints_of_the_queue(document: dict[str, object]) -> str:
    try:
        return "".join(read_device_config(document, "f").warnings)
    except ConfigError as error:
        return str(error)


@pytest.mark.parametrize("key", NVIDIA_KEYS)
def test_both_services_know_each_key_of_nvidias_section(key: str) -> None:
    document: dict[str, object] = {"nvidia": {key: ["x"]}}
    assert UNKNOWN not in complaints_of_the_node(PartKind.DEVICE_CONFIG, document)
    assert UNKNOWN not in complaints_of_the_queue(document)


def test_neither_knows_another_key() -> None:
    document: dict[str, object] = {"nvidia": {"resourceName": 1}}
    assert UNKNOWN in complaints_of_the_node(PartKind.DEVICE_CONFIG, document)
    assert UNKNOWN in complaints_of_the_queue(document)
    applied = {
        *node_settings._DEVICE_KEYS,
        *node_settings._DEVICE_UNDONE,
        *("gpuCorePolicy", "disableCoreLimit"),
    }
    assert applied == set(NVIDIA_KEYS)


@pytest.mark.parametrize("key", NODE_KEYS)
def test_a_node_knows_each_key_of_its_entry(key: str) -> None:
    document = {"nodeconfig": [{"name": "n1", key: 1}]}
    assert UNKNOWN not in complaints_of_the_node(PartKind.NODE_CONFIG, document)


@pytest.mark.parametrize("section", [*VENDORS, *SECTION_KEYS])
def test_both_services_know_each_vendors_section(section: str) -> None:
    assert "no such section" not in complaints_of_the_queue({section: {}})
    assert "no such section" not in complaints_of_the_node(PartKind.DEVICE_CONFIG, {section: {}})
