"""The definitions are the table, and the table is what the reader knows."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from queuecontroller.kueueapi import KINDS
from queuecontroller.kueueapi.crds import AMOUNT, AMOUNT_OR_AUTO, Webhook, definitions
from queuecontroller.kueueapi.fields import Field, Fields, Kind, ListOf, MapOf, Type
from queuecontroller.kueueapi.table import ALPHA_KINDS

ROOT = Path(__file__).resolve().parents[3]
WRITTEN = ROOT / "packaging" / "kubernetes" / "kueue-crds.yaml"


def test_the_file_is_what_the_table_says() -> None:
    spec = importlib.util.spec_from_file_location(
        "crds", ROOT / "packaging" / "generate" / "crds.py"
    )
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    assert WRITTEN.read_text() == program.text(Webhook()), "make chart"


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for made in definitions(Webhook()):
        for version in made["spec"]["versions"]:
            name = f"{made['spec']['names']['kind']} {version['name']}"
            yield name, version["schema"]["openAPIV3Schema"]


def walked(at: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield at, schema
    for name, one in schema.get("properties", {}).items():
        yield from walked(f"{at}.{name}", one)
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield from walked(f"{at}[]", schema[key])


@pytest.mark.parametrize(
    ("name", "schema"), list(schemas()), ids=lambda one: one if isinstance(one, str) else ""
)
def test_every_field_is_described_and_every_list_bounded(name: str, schema: dict[str, Any]) -> None:
    for at, one in walked(name, schema):
        if not at.endswith("[]") and at.split(".")[-1] != "metadata":
            assert one.get("description", "").endswith("."), at
        if one.get("type") == "array":
            assert one["maxItems"] >= 1, at
            keys = one.get("x-kubernetes-list-map-keys", [])
            item = one["items"]
            for key in keys:
                assert key in item.get("required", ()) or "default" in item["properties"][key], at


def test_messages_may_be_empty_and_must_be_there() -> None:
    """Kueue's check controllers answer Ready without a word, and Go writes the empty text."""
    found = []
    for name, schema in schemas():
        for at, one in walked(name, schema):
            if "message" in one.get("properties", {}):
                assert "message" in one["required"], at
                assert "minLength" not in one["properties"]["message"], at
                found.append(at)
    assert "Workload v1beta2.status.admissionChecks[]" in found
    assert "ClusterQueue v1beta1.status.conditions[]" in found


def test_a_workload_has_no_rules_that_every_write_would_run() -> None:
    for name, schema in schemas():
        rules = [at for at, one in walked(name, schema) if "x-kubernetes-validations" in one]
        if name.startswith("Workload "):
            assert rules == []


def test_one_version_is_stored_and_it_is_the_newest() -> None:
    for made in definitions(Webhook()):
        stored = [one["name"] for one in made["spec"]["versions"] if one["storage"]]
        is_alpha = made["spec"]["names"]["kind"] in {one.name for one in ALPHA_KINDS}
        assert stored == (["v1alpha1"] if is_alpha else ["v1beta2"])
        assert ("conversion" in made["spec"]) != is_alpha
        assert all(one["served"] for one in made["spec"]["versions"])


def test_names_that_people_type() -> None:
    names = [
        name
        for kind in KINDS.values()
        for name in (kind.plural, kind.name.lower(), *kind.short_names)
    ]
    assert len(names) == len(set(names))
    assert {"cq", "lq", "kwl", "rf", "co", "topo", "ac", "wpc", "mkc", "mkconf", "prc"} <= set(
        names
    )


@pytest.mark.parametrize("good", ["0", "1", "1.5", "500m", "2Gi", "1e3", "+1", ".5", "1.", "auto"])
def test_quantities_that_the_schema_takes(good: str) -> None:
    assert re.search(AMOUNT_OR_AUTO, good)
    assert bool(re.search(AMOUNT, good)) == (good != "auto")


@pytest.mark.parametrize("bad", ["", "-1", "x", "1 Gi", "1Gi2", "automatic", "1KB", "--1"])
def test_quantities_that_the_schema_refuses(bad: str) -> None:
    assert not re.search(AMOUNT_OR_AUTO, bad)


def rows(type_: Type, at: str) -> Iterator[tuple[str, Field]]:
    match type_:
        case Fields(of):
            for name, one in of.items():
                yield f"{at}.{name}", one
                yield from rows(one.type, f"{at}.{name}")
        case ListOf(item=item) | MapOf(item=item):
            yield from rows(item, at)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_every_row_is_in_a_version_of_its_kind(kind: Kind) -> None:
    for at, one in rows(kind.fields, kind.name):
        assert set(kind.versions) & one.versions or at == "Cohort.spec.parent", at
