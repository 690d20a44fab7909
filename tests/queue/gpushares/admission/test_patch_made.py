"""Patches that the webhook writes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from queuecontroller.gpushares.admission import (
    Rules,
    admit,
    patch,
)
from tests.queue.gpushares.vendors.plugins import PLUGINS

RULES = Rules(scheduler="sluice-scheduler")


def applied(document: Any, operations: list[dict[str, Any]]) -> Any:
    document = copy.deepcopy(document)
    for one in operations:
        *path, last = [
            part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]
        ]
        place = document
        for part in path:
            place = place[int(part)] if isinstance(place, list) else place[part]
        if isinstance(place, list):
            place.append(one["value"]) if last == "-" else place.__setitem__(
                int(last), one["value"]
            )
        elif one["op"] == "remove":
            del place[last]
        else:
            place[last] = one["value"]
    return document


@pytest.mark.parametrize("plugin", PLUGINS, ids=[one.word for one in PLUGINS])
def test_a_patch_makes_what_was_meant(plugin: Any) -> None:
    before = plugin.pod()
    after = admit(RULES, before, "u", "t").pod
    assert applied(before, json.loads(patch(before, after))) == after


def test_a_patch_takes_out_and_grows() -> None:
    before = {"a/b": {"x~": 1, "gone": 2}, "list": [{"n": 1}], "same": 1}
    after = {"a/b": {"x~": 3}, "list": [{"n": 2}, {"n": 3}], "same": 1, "new": []}
    assert applied(before, json.loads(patch(before, after))) == after
    assert patch(before, before) == b"[]"
