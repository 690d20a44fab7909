"""proto/region.h and proto/register.h as the C compiler lays them out: the same as Python sees, and as v1 froze them.

The names of structures and fields are read out of the headers, their offsets and sizes are asked of the compiler, so a
field that only one side knows cannot hide. tests/golden/region-v1.json is what programs already running in other
people's images believe; `SLUICE_UPDATE_GOLDEN=1 pytest tests/interpose/attach` writes it anew, which is right before a release only.
"""

from __future__ import annotations

import copy
import ctypes
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nodeagent.adapters.region import layout as region_layout
from tests.kit.places import REPO

HEADERS = ("proto/region.h", "proto/register.h")
GOLDEN = REPO / "tests" / "golden"

HOW_TO_VERSION = """
Tenants map this memory with code that was built long ago. To change the layout, either
  give meaning to reserved bytes (zero must mean "as before") and raise SLUICE_REGION_MINOR, or
  raise SLUICE_REGION_MAJOR, which every older tenant refuses, and freeze tests/golden/region-v<major>.json.
"""

Layout = dict[str, Any]
"""{"constants": {name: value}, "structs": {name: {"size": n, "fields": [[name, offset, size], ...]}}}"""


def declared() -> tuple[dict[str, list[str]], list[str]]:
    """Structures with their fields, and integer constants, as the headers name them."""
    structs: dict[str, list[str]] = {}
    constants: list[str] = []
    for header in HEADERS:
        text = (REPO / header).read_text()
        # what the compiler is not asked about: comments, the guard, text constants
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for name, body in re.findall(
            r"^struct (\w+) \{\n(.*?)^\};", text, re.DOTALL | re.MULTILINE
        ):
            fields = re.findall(r"(\w+)(?:\[\w+\])?\s*;", body)
            assert len(fields) == body.count(";"), f"{name}: a field this reader cannot read"
            structs[name] = fields
        constants += re.findall(r"^#define (SLUICE_\w+) +[^\s\"]", text, re.MULTILINE)
        for body in re.findall(r"^enum \w+ \{\n(.*?)^\};", text, re.DOTALL | re.MULTILINE):
            constants += re.findall(r"(SLUICE_\w+)", body)
    return structs, constants


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    structs, constants = declared()
    lines = [f'#include "{header}"' for header in HEADERS]
    lines += ["#include <stdio.h>", "int main(void)", "{"]
    for struct, fields in structs.items():
        lines.append(f'printf("{struct} - 0 %zu\\n", sizeof(struct {struct}));')
        lines += [
            f'printf("{struct} {field} %zu %zu\\n", offsetof(struct {struct}, {field}), '
            f"sizeof(((struct {struct} *)0)->{field}));"
            for field in fields
        ]
    lines += [f'printf("{name} = %llu 0\\n", (unsigned long long)({name}));' for name in constants]
    lines += ["return 0;", "}"]
    here = tmp_path_factory.mktemp("layout")
    (here / "layout.c").write_text("\n".join(lines))
    subprocess.run(
        ["cc", "-std=gnu11", "-I", REPO, here / "layout.c", "-o", here / "layout"], check=True
    )
    out = subprocess.run([here / "layout"], capture_output=True, text=True, check=True).stdout
    layout: Layout = {"constants": {}, "structs": {}}
    for line in out.splitlines():
        owner, field, first, size = line.split()
        if field == "=":
            layout["constants"][owner] = int(first)
        elif field == "-":
            layout["structs"][owner] = {"size": int(size), "fields": []}
        else:
            layout["structs"][owner]["fields"].append([field, int(first), int(size)])
    return layout


def as_python_sees_it() -> dict[str, Any]:
    return {
        name: {
            "size": ctypes.sizeof(structure),
            "fields": [
                [field[0], getattr(structure, field[0]).offset, getattr(structure, field[0]).size]
                for field in structure._fields_
            ],
        }
        for name, structure in region_layout.STRUCTURES.items()
    }


def test_python_and_c_agree_on_every_field(compiled: Layout) -> None:
    assert as_python_sees_it() == compiled["structs"]


def test_python_and_c_agree_on_every_constant(compiled: Layout) -> None:
    ours = {name: getattr(region_layout, name) for name in dir(region_layout) if name.isupper()}
    numbers = {name: value for name, value in ours.items() if isinstance(value, int)}
    assert len(numbers) > 10
    assert numbers == {name: compiled["constants"].get(f"SLUICE_{name}") for name in numbers}


def test_python_and_c_agree_on_the_file_names() -> None:
    text = "".join((REPO / header).read_text() for header in HEADERS)
    names = dict(re.findall(r'^#define SLUICE_(\w+_FILE) "(.*)"$', text, re.MULTILINE))
    assert len(names) == 3
    assert names == {name: getattr(region_layout, name) for name in names}


def test_no_padding_hides_so_every_word_is_naturally_aligned(compiled: Layout) -> None:
    for name, struct in compiled["structs"].items():
        end = 0
        for field, offset, size in struct["fields"]:
            assert offset == end, f"{name}: bytes without a name before {field}"
            end = offset + size
        assert end == struct["size"], f"{name}: bytes without a name at the end"


# --- v1 is frozen ------------------------------------------------------------------------------------------------


def broken_promises(frozen: Layout, now: Layout) -> list[str]:
    """Differences between two layouts that a tenant built against `frozen` would misread in a
    region of `now`."""
    found = []
    newer_minor = (
        now["constants"]["SLUICE_REGION_MINOR"] > frozen["constants"]["SLUICE_REGION_MINOR"]
    )
    for name, value in frozen["constants"].items():
        if name != "SLUICE_REGION_MINOR" and now["constants"].get(name) != value:
            found.append(f"{name} was {value}, is {now['constants'].get(name)}")
    for struct, was in frozen["structs"].items():
        new = now["structs"].get(struct, {"size": None, "fields": []})
        if new["size"] != was["size"]:
            found.append(f"{struct} had {was['size']} bytes, has {new['size']}")
        reserved = [(o, o + n) for field, o, n in was["fields"] if field.startswith("reserved")]
        old_names = {field for field, _, _ in was["fields"]}
        for field, offset, size in was["fields"]:
            if not field.startswith("reserved") and [field, offset, size] not in new["fields"]:
                found.append(f"{struct}.{field} was {size} bytes at {offset}")
        for field, offset, size in new["fields"]:
            if field in old_names or field.startswith("reserved"):
                continue
            if not any(start <= offset and offset + size <= end for start, end in reserved):
                found.append(f"{struct}.{field} is new and not in reserved bytes")
            elif not newer_minor:
                found.append(f"{struct}.{field} uses reserved bytes without a new minor")
    return found


def test_v1_is_frozen(compiled: Layout) -> None:
    path = GOLDEN / f"region-v{compiled['constants']['SLUICE_REGION_MAJOR']}.json"
    if os.environ.get("SLUICE_UPDATE_GOLDEN") == "1":
        path.write_text(pretty(compiled))
    assert path.exists(), f"a new major, not frozen yet{HOW_TO_VERSION}"
    broken = broken_promises(json.loads(path.read_text()), compiled)
    assert not broken, "\n".join(broken) + "\n" + HOW_TO_VERSION


def pretty(layout: Layout) -> str:
    """One field per line, so that a review sees what moved."""
    text = json.dumps(layout, indent=1)
    return re.sub(r"\[\s+(\"\w+\"),\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2, \3]", text) + "\n"


def frozen_v1() -> Layout:
    layout: Layout = json.loads((GOLDEN / "region-v1.json").read_text())
    return layout


def field_of(layout: Layout, struct: str, name: str) -> list[Any]:
    found: list[Any] = next(f for f in layout["structs"][struct]["fields"] if f[0] == name)
    return found


def test_a_moved_a_renamed_and_a_narrower_field_break_v1() -> None:
    for change in (("seq", 0, 8), ("sequence", 0, 4), ("seq", 4, 4)):
        now = copy.deepcopy(frozen_v1())
        field_of(now, "sluice_policy_control", "seq")[:] = change
        assert any(
            "sluice_policy_control.seq " in line for line in broken_promises(frozen_v1(), now)
        )


def test_a_new_constant_is_fine_and_another_value_is_not() -> None:
    now = copy.deepcopy(frozen_v1())
    now["constants"]["SLUICE_FLAG_NEW"] = 16
    assert broken_promises(frozen_v1(), now) == []
    now["constants"]["SLUICE_MAX_SLOTS"] = 512
    assert broken_promises(frozen_v1(), now) == ["SLUICE_MAX_SLOTS was 256, is 512"]


def test_reserved_bytes_may_be_used_by_a_new_minor_only() -> None:
    now = copy.deepcopy(frozen_v1())
    _, offset, size = field_of(now, "sluice_policy_control", "reserved")
    fields = now["structs"]["sluice_policy_control"]["fields"]
    fields[-1:] = [["paused_ns", offset, 8], ["reserved", offset + 8, size - 8]]
    assert broken_promises(frozen_v1(), now) == [
        "sluice_policy_control.paused_ns uses reserved bytes without a new minor"
    ]
    now["constants"]["SLUICE_REGION_MINOR"] += 1
    assert broken_promises(frozen_v1(), now) == []
    fields[-2][1] = 0
    assert broken_promises(frozen_v1(), now) == [
        "sluice_policy_control.paused_ns is new and not in reserved bytes"
    ]


def test_the_golden_file_is_of_these_headers() -> None:
    structs, _ = declared()
    assert set(frozen_v1()["structs"]) <= set(structs), HOW_TO_VERSION
    assert Path(GOLDEN / "region-v1.json").read_text() == pretty(frozen_v1())
