"""The JSON patch (RFC 6902) that turns one document into another, with small operations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> bytes:
    return json.dumps(list(operations(before, after, "")), separators=(",", ":")).encode()


def operations(before: Any, after: Any, path: str) -> Iterator[Operation]:
    """Operations of the patch. Lists of equal length are compared entry by entry; a list that only
    grew gets its new entries appended."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in before:
            if key not in after:
                yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
        for key, value in after.items():
            at = f"{path}/{_escaped(key)}"
            if key in before:
                yield from operations(before[key], value, at)
            else:
                yield {"op": "add", "path": at, "value": value}
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for i, one in enumerate(before):
            yield from operations(one, after[i], f"{path}/{i}")
        for one in after[len(before) :]:
            yield {"op": "add", "path": f"{path}/-", "value": one}
    else:
        yield {"op": "replace", "path": path, "value": after}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
