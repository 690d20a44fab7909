"""The text of an error, as people read it in logs, events and conditions."""

from __future__ import annotations

import pytest

from sluicecommon.logs import error_text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(TimeoutError(), "no answer in time", id="asyncio.timeout gives no text"),
        pytest.param(TimeoutError("not within 1 s"), "not within 1 s", id="a timeout with a text"),
        pytest.param(ValueError("invalid"), "invalid", id="an error with a text"),
        pytest.param(EOFError(), "EOFError", id="an error without a text is named by its type"),
    ],
)
def test_every_error_has_a_text(error: Exception, text: str) -> None:
    assert error_text(error) == text
