"""Turning to a page, and scripts that list what of it cannot be read."""

from __future__ import annotations

import json

from tests.page.browser import Page

CUT_OFF = """[...document.querySelectorAll('main .head .cell, main th, nav a, .tile .value')]
    .filter(x => x.scrollWidth > x.clientWidth + 2).map(x => x.textContent)"""
UNNAMED = "[...document.querySelectorAll('main .head .cell, main th')].filter(x => !x.textContent.trim()).length"
CUT_REASONS = """[...document.querySelectorAll('.whole .row .text')]
    .filter(x => x.scrollHeight > x.clientHeight + 2).map(x => x.textContent)"""


async def show(page: Page, path: str, *words: str) -> None:
    await page.js(f"location.hash = {json.dumps('#/' + path)}")
    for one in words:
        await page.says(one)
