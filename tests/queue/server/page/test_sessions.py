"""A session of the page by a Kubernetes token is not the token."""

from __future__ import annotations

import asyncio

import pytest

from queuecontroller.server.page.viewers import ByToken
from sluicecommon.kubernetes.client import ApiClient
from sluicecommon.kubernetes.credentials import Access
from sluicecommon.page.board import Sight
from sluicecommon.web import page
from sluicecommon.web.page import Refusal, Viewer

TOKEN = "eyJhbGciOi.ann"


class Reviewed(ByToken):
    """Knows one token, without an API server."""

    reviews = 0

    def client(self, token: str) -> ApiClient:
        if token != TOKEN:
            raise Refusal(401, "Kubernetes rejects this token")
        return super().client(token)

    async def _review(self, client: ApiClient, token: str) -> Viewer:
        self.reviews += 1
        return Viewer("ann", Sight(), {}, token)


def test_the_browser_gets_a_session_and_never_the_token() -> None:
    async def main() -> None:
        viewers = Reviewed(Access("http://127.0.0.1:9"), list)
        session = await viewers.enter(TOKEN)
        assert TOKEN not in session
        assert session != await viewers.enter(TOKEN)
        viewer = await viewers.viewer(session)
        assert (viewer.name, viewer.whom) == ("ann", TOKEN), "acts with the viewer's own rights"
        assert (await viewers.viewer(TOKEN)).name == "ann", "as a proxy sends it"
        viewers.leave(session)
        with pytest.raises(Refusal) as caught:
            await viewers.viewer(session)
        assert caught.value.status == 401
        with pytest.raises(Refusal):
            await viewers.enter("another")
        with pytest.raises(Refusal):
            await viewers.enter(await viewers.enter(TOKEN))

    asyncio.run(main())


def test_rights_are_reviewed_again_within_30_s_also_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr("queuecontroller.server.page.viewers.monotonic", lambda: now_s)

    async def main() -> None:
        nonlocal now_s
        viewers = Reviewed(Access("http://127.0.0.1:9"), list)
        session = await viewers.enter(TOKEN)
        assert viewers.reviews == 1
        await viewers.viewer(session)
        assert viewers.reviews == 1, "cached"
        now_s += 30.0 - page.BEAT_S  # A stream may have looked just before and looks again then.
        await viewers.viewer(session)
        assert viewers.reviews == 2

    asyncio.run(main())
