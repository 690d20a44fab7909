"""The queue's page in a real Chromium, against the real service with 50 nodes on its wire."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.kit.places import REPO
from tests.page.browser import Page
from tests.page.cluster import job
from tests.page.conftest import SCREENS, Stage
from tests.page.reading import CUT_OFF, CUT_REASONS, UNNAMED, show

pytestmark = pytest.mark.page
NEW = itertools.count(1)
BUTTONS = "[...document.querySelectorAll('main .actions button')].map(x => x.textContent)"
OUTSIDE_OF_BARS = """[...document.querySelectorAll('.bar .mark')].filter(x => {
    const [mark, bar] = [x, x.parentElement].map(one => one.getBoundingClientRect());
    return mark.left < bar.left - .1 || mark.right > bar.right + .1;
}).map(x => x.parentElement.title)"""
EMPTY_PARTS = """[...document.querySelectorAll('.bar .part')].filter(x => x.style.width === '0%' || x.style.width === '0.00%').length"""
ALIKE = """[...document.querySelectorAll('.card')].filter(card => {
    const rows = [...card.querySelectorAll('tbody tr')].map(x => [x.querySelector('.swatch').className, x.cells[0].innerText.split(' pod ')[0]]);
    const [colours, holders] = [0, 1].map(at => new Set(rows.map(x => x[at])).size);
    return colours < Math.min(holders, 8);
}).map(x => x.querySelector('h2').textContent)"""
BASELINES = """[...document.querySelectorAll('.filters label, .filters output')].map(x => {
    const probe = x.insertBefore(document.createElement('span'), x.firstChild);
    probe.style.cssText = 'display: inline-block';
    const at = Math.round(probe.getBoundingClientRect().bottom);
    probe.remove();
    return at;
})"""
PAGES = {
    "overview": ("", ["400 / 400", "Longest pending", "Grants in little use", "GPU memory by grant", "Queue lengths", "Fragmentation"]),
    "workloads": ("workloads", ["Workloads", "Pending", "Running"]),
    "workload": ("workloads/vision/train-0", ["Running", "Placement", "24 GiB", "30 %"]),
    "waiting": ("workloads/search/train-219", ["Why it is pending", "It would start if", "position"]),
    "clusterqueues": ("clusterqueues", ["Cohort company", "Cohort research", "vision", "nvidia.com/gpu"]),
    "clusterqueue": ("clusterqueues/search", ["Quota", "nominal", "40", "company"]),
    "localqueues": ("localqueues", ["main", "robots"]),
    "localqueue": ("localqueues/vision/main", ["ClusterQueue", "admitted"]),
    "nodes": ("nodes", ["50 of 50", "gpu-00", "8 × NVIDIA H100 80GB"]),
    "node": ("nodes/gpu-00", ["GPU 0", "GPU 7", "of 80 GiB", "memory granted"]),
    "flavors": ("flavors", ["h100", "block-0", "topology/block=block-0"]),
    "topology": ("topology", ["racks", "block-4", "10 nodes"]),
    "events": ("events", ["Events"]),
    "whatif": ("whatif", ["Simulate"]),
    "object": ("object/ClusterQueue//vision", ["nominalQuota: 60", "kind: ClusterQueue"]),
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_each_page_shows_what_it_is_for(stage: Stage, name: str) -> None:
    async def scene(page: Page) -> None:
        path, words = PAGES[name]
        await show(page, path, *words)
        assert "no such page" not in (await page.text()).lower()
        await page.shot(SCREENS / f"{name}.png")
        policies = [text for url, text in page.policies.items() if "/api/stream" not in url]
        assert policies
        assert all("default-src 'none'" in one for one in policies)

    stage.play(scene)


def test_every_column_has_a_name_and_no_text_that_counts_is_cut_off(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        for name in ("overview", "workloads", "workload", "waiting", "nodes", "node"):
            path, words = PAGES[name]
            await show(page, path, *words)
            assert await page.js(CUT_OFF) == [], name
            assert await page.js(UNNAMED) == 0, name
            assert await page.js(CUT_REASONS) == [], name

    stage.play(scene)


def test_bars_are_read_without_knowing_how_they_are_made(stage: Stage) -> None:
    """Each holder of a GPU has a colour that no other has there, a mark is inside its bar, and what
    is nothing is not drawn."""

    async def scene(page: Page) -> None:
        for name in ("overview", "clusterqueues", "nodes", "node"):
            path, words = PAGES[name]
            await show(page, path, *words)
            assert await page.js(OUTSIDE_OF_BARS) == [], name
            assert await page.js(EMPTY_PARTS) == 0, name
        for node in range(8):
            await show(page, f"nodes/gpu-{node:02}", "GPU 0", "memory granted")
            assert await page.js(ALIKE) == [], "two holders of one GPU have one colour"

    stage.play(scene)


def test_filters_stand_on_one_line(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        for name in ("workloads", "nodes"):
            path, words = PAGES[name]
            await show(page, path, *words)
            assert len(set(await page.js(BASELINES))) == 1, name

    stage.play(scene)


def test_a_change_is_seen_within_two_seconds(stage: Stage) -> None:
    """One of five tries: the machine may be at something else."""

    async def scene(page: Page) -> None:
        await show(page, "workloads", "Workloads")
        took: list[float] = []
        for _ in range(5):
            name = f"new-{next(NEW)}"
            await asyncio.to_thread(stage.cluster.submit, job(name, "vision"))
            began_s = time.monotonic()
            await page.until(f"!!sluice.app.store.get('Workload', 'vision', '{name}')")
            await show(page, f"workloads/vision/{name}", f"vision/{name}")
            took.append(time.monotonic() - began_s)
            if took[-1] <= 2.0:
                return
            await show(page, "workloads", "Workloads")
        raise AssertionError(took)

    stage.play(scene)


def test_a_stream_that_was_cut_goes_on_where_it_was(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await show(page, "workloads", "Workloads")
        await page.js("sluice.app.store.source.addEventListener('reset', () => (globalThis.again = true))")  # fmt: skip
        name = f"new-{next(NEW)}"
        before = await page.js("sluice.app.store.last")
        await page.js("sluice.app.store.close()")
        await asyncio.to_thread(stage.cluster.submit, job(name, "robots"))
        await asyncio.sleep(1)
        assert not await page.js(f"!!sluice.app.store.get('Workload', 'robots', '{name}')")
        received = await page.js("sluice.app.store.received")
        await page.js("sluice.app.store.open(), sluice.app.store.source.addEventListener('reset', () => (globalThis.again = true))")  # fmt: skip
        await page.until(f"!!sluice.app.store.get('Workload', 'robots', '{name}')")
        assert not await page.js("!!globalThis.again")
        assert await page.js("sluice.app.store.last") != before
        # What it missed, and not everything anew.
        assert await page.js("sluice.app.store.received") - received < 60_000

    stage.play(scene)


def test_who_is_not_logged_in_sees_nothing(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await page.go(stage.origin)
        await page.says("sluice-queue web")
        assert (
            await page.js("sluice.app.store.size('Workload') + sluice.app.store.size('Node')") == 0
        )
        await page.shot(SCREENS / "login.png")

    stage.play(scene, logged_in=False)
    origin = stage.origin
    for path in ("stream", "explain?namespace=vision&name=train-0", "object?kind=Node&name=gpu-00", "history?gpu=GPU-gpu-00-0", "may?kind=Node&name=x"):  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{origin}api/{path}", timeout=20)
        assert error.value.code == 401, path
        assert b"train" not in error.value.read()


def test_a_url_opens_one_session_once(stage: Stage) -> None:
    url = stage.cluster.url()
    origin, _, ticket = url.partition("#ticket=")

    def enter(secret: str, **headers: str) -> tuple[int, str]:
        request = urllib.request.Request(
            f"{origin}api/enter",
            json.dumps({"secret": secret}).encode(),
            {"Content-Type": "application/json", "X-Sluice-Page": "1", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                assert "Set-Cookie" not in answer.headers
                return answer.status, json.loads(answer.read())["session"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    assert enter(ticket, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert enter("x" * 40)[0] == 403
    status, session = enter(ticket)
    assert (status, len(session) >= 32) == (200, True)
    status, why = enter(ticket)
    assert (status, "sluice-queue web" in why) == (403, True)


def test_another_port_of_the_host_does_not_get_the_session(stage: Stage) -> None:
    received: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.append(str(self.headers))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>other</title>")

        def log_message(self, *_: object) -> None: ...

    async def scene(page: Page) -> None:
        session = await page.js("sessionStorage.getItem('sluice-session')")
        assert len(session) >= 24
        cookies = (await page.call("Network.getCookies", urls=[stage.origin]))["cookies"]
        assert cookies == []
        with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            other = await stage.browser.window(page.context)
            await other.go(f"http://127.0.0.1:{server.server_port}/")
            await other.until("document.title === 'other'")
            stored = await other.js("JSON.stringify([document.cookie, {...sessionStorage}])")
            await asyncio.to_thread(server.shutdown)
        assert received
        assert not [one for one in received if "cookie" in one.lower() or session in one]
        assert json.loads(stored) == ["", {}]

    stage.play(scene)


def test_a_second_window_continues_the_session_until_it_is_logged_out(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        second = await stage.browser.window(page.context)
        await second.go(f"{stage.origin}#/nodes")
        await second.says("50 of 50")
        await second.click("Log out")
        await second.says("sluice-queue web")
        await page.until("sluice.app.store.state === 'ended'")  # Not drawn: the window is hidden.

    stage.play(scene)


def test_holding_takes_a_confirmation_and_leaves_a_row(stage: Stage) -> None:
    name = f"new-{next(NEW)}"
    stage.cluster.submit(job(name, "search"))

    async def scene(page: Page) -> None:
        await show(page, f"workloads/search/{name}", "Hold…")
        assert await page.js(BUTTONS) == ["Hold…"], "nothing is held that could be resumed"
        await page.click("Hold…")
        await page.until("document.querySelector('dialog').open")
        await page.click("Cancel")
        await page.until("!document.querySelector('dialog').open")
        await page.click("Hold…")
        await page.until("document.querySelector('dialog button[type=submit]') && document.querySelector('dialog').open")  # fmt: skip
        await page.shot(SCREENS / "confirmation.png")
        await page.js("document.querySelector('dialog button[type=submit]').click()")
        await page.says("It is recorded in the audit trail.")
        await page.click("Close")
        await page.until(f"sluice.app.store.get('Workload', 'search', '{name}').held === true")
        await page.says("hold by root over the page")
        assert await page.js(BUTTONS) == ["Resume…"]

    stage.play(scene)
    found = json.loads(
        stage.cluster.controller.cli("explain", f"search/{name}", "-o", "json").stdout
    )
    assert "ByPage" in {one["kind"] for one in found["events"]}
    assert found["status"]["phase"] == "Held"


def test_a_filter_is_a_url_that_can_be_kept(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await show(page, "workloads?ns=robots&q=train-2", "Workloads")
        await page.until("document.querySelector('output').textContent.endsWith(' of ' + sluice.app.store.size('Workload'))")  # fmt: skip
        names = await page.js("[...document.querySelectorAll('.whole .row .cell:first-child')].map(x => x.innerText)")  # fmt: skip
        assert names
        assert all("robots" in one and "train-2" in one for one in names)
        await page.js("(e => { e.value = 'Running'; e.dispatchEvent(new Event('change', {bubbles: true})); })(document.querySelectorAll('select')[0])")  # fmt: skip
        await page.until("location.hash.includes('phase=Running') && location.hash.includes('ns=robots')")  # fmt: skip

    stage.play(scene)


def test_what_if_plays_the_same_engine(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await show(page, "whatif?kind=ClusterQueue&name=search", "Simulate")
        await page.until("document.querySelector('textarea').value.includes('nominalQuota: 40')")
        await page.js("(e => { e.value = e.value.replace('nominalQuota: 40', 'nominalQuota: 400'); e.dispatchEvent(new Event('input', {bubbles: true})); })(document.querySelector('textarea'))")  # fmt: skip
        await page.click("Simulate")
        await page.says("would run without the change", 120)
        text = await page.text()
        assert "Starts: 0" not in text, text
        assert "search/train-219" in text
        await page.shot(SCREENS / "whatif-played.png")

    stage.play(scene)


def test_the_page_works_by_keyboard_alone(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await page.call("Page.reload")
        await page.until("globalThis.sluice && sluice.app.store.synced")
        await show(page, "", "Overview")
        await page.press("Tab", 9)
        assert await page.js("document.activeElement.textContent") == "Skip to content"
        await page.press("Enter", 13)
        await page.until("document.activeElement.id === 'main'")
        await page.call("Page.reload")
        await page.until("globalThis.sluice && sluice.app.store.synced")
        for _ in range(3):
            await page.press("Tab", 9)
        assert await page.js("document.activeElement.textContent") == "Workloads"
        assert await page.js("getComputedStyle(document.activeElement).outlineStyle") != "none"
        await page.press("Enter", 13)
        await page.says("estimate")
        assert await page.js("location.hash") == "#/workloads"

    stage.play(scene)


def test_times_are_in_the_viewers_zone(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        shown = []
        for zone in ("UTC", "Asia/Tokyo"):
            await page.call("Emulation.setTimezoneOverride", timezoneId=zone)
            await page.call("Page.reload")
            await page.until("globalThis.sluice && sluice.app.store.synced")
            await show(page, "workloads/vision/train-0", "submitted")
            shown.append(await page.js("[...document.querySelectorAll('.facts div')].find(x => x.innerText.startsWith('submitted\\n') || x.querySelector('dt').textContent === 'submitted').querySelector('dd').textContent"))  # fmt: skip
        assert shown[0] != shown[1]

    stage.play(scene)


def test_on_a_phone_nothing_is_cut_off(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await page.size(390, 844, phone=True)
        await page.dark(True)
        for name, (path, words) in PAGES.items():
            await show(page, path, words[0])
            wide = await page.js("document.documentElement.scrollWidth")
            assert wide <= 390, f"{name} is {wide} wide"
            if name in ("overview", "workloads", "waiting"):
                await page.shot(SCREENS / f"phone-{name}.png")

    stage.play(scene)


@pytest.fixture(scope="module")
def axe() -> str:
    tool = REPO / "packaging" / "fetch" / "axe-tool.sh"
    done = subprocess.run([tool], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()).read_text()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_serious(stage: Stage, axe: str, dark: bool) -> None:
    async def scene(page: Page) -> None:
        await page.dark(dark)
        await page.js(axe + "; true")
        for name, (path, words) in PAGES.items():
            await show(page, path, words[0])
            await page.js("new Promise(r => setTimeout(r, 400))")  # colours that fade
            found = await page.js("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => [v.impact, v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))")  # fmt: skip
            serious = [one for one in found if one[0] in ("serious", "critical")]
            assert serious == [], f"{name}: {json.dumps(serious, indent=1)}"
        if dark:
            await show(page, "", "Overview")
            await page.shot(SCREENS / "overview-dark.png")

    stage.play(scene)


def test_a_session_that_ended_stops_the_stream_and_says_how_to_get_another(stage: Stage) -> None:
    async def scene(page: Page) -> None:
        await show(page, "workloads", "Workloads")
        await page.js("import('/front/store.js').then(store => store.act('leave', {}))")
        await page.says("sluice-queue web")  # within a beat of the stream

    stage.play(scene)
