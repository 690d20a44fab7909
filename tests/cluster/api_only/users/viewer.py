"""A viewer with a token on the queue's page."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any


@dataclass
class Viewer:
    """One token on the page."""

    port: int
    token: str

    def call(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "X-Sluice-Page": "1", "Content-Type": "application/json", **headers},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def sees(self) -> set[tuple[str, str, str]]:
        """Keys of all documents that the stream sends first."""
        return set(self.documents())

    def documents(self) -> dict[tuple[str, str, str], dict[str, Any]]:
        """All documents that the stream sends first, by kind, namespace and name."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/stream",
            headers={"Authorization": f"Bearer {self.token}"},
        )
        found: dict[tuple[str, str, str], dict[str, Any]] = {}
        with urllib.request.urlopen(request, timeout=60) as answer:
            event = ""
            for raw in answer:
                line = raw.decode().rstrip("\n")
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                if line.startswith("data: ") and event == "delta":
                    found |= {(one[0], one[1], one[2]): one[3] for one in json.loads(line[6:])}
                if line.startswith("data: ") and event == "synced":
                    return found
        raise AssertionError("the stream ended")
