"""The page's session is a header of its requests, and no cookie."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from sluicecommon.web.page import Refusal, Viewer
from tests.unit.page.shown import ALL, Shown, serving

SESSION = "session-of-ann"


class Known(Shown):
    async def enter(self, secret: str) -> str:
        return SESSION

    async def viewer(self, credential: str) -> Viewer:
        if credential not in (SESSION, "token"):
            raise Refusal(401, "not logged in")
        return Viewer("ann", ALL)


async def _calls() -> dict[str, Any]:
    backend = Known()
    found: dict[str, Any] = {}
    async with serving(backend) as server, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{server.port}/api/"

        async def session(**headers: str) -> tuple[int, Any]:
            async with http.get(f"{url}session", headers=headers) as answer:
                return answer.status, (await answer.json()).get("viewer")

        posted = {"json": {"secret": "token"}, "headers": {"X-Sluice-Page": "1"}}
        async with http.post(f"{url}enter", **posted) as answer:
            found["entered"] = (await answer.json(), "Set-Cookie" in answer.headers)
        found["header"] = await session(**{"X-Sluice-Session": SESSION})
        found["token"] = await session(Authorization="Bearer token")
        found["cookie"] = await session(Cookie=f"sluice-page-{server.port}={SESSION}")
        found["other replica's"] = await session(**{"X-Sluice-Session": "session-unknown"})
        backend.frames = None
        found["before it leads"] = await session(**{"X-Sluice-Session": "session-unknown"})
    return found


def test_a_session_is_taken_from_its_header_alone() -> None:
    assert asyncio.run(_calls()) == {
        "entered": ({"session": SESSION}, False),
        "header": (200, "ann"),
        "token": (200, "ann"),
        "cookie": (200, None),
        "other replica's": (200, None),
        "before it leads": (503, None),
    }
