"""The page in a real browser: new rows appear, everybody can use it, and nothing complains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import showing
from tests.browser.told import told_network

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
pytestmark = pytest.mark.browser

DARK, LIGHT = {"prefers_color_scheme": "dark"}, {"prefers_color_scheme": "light"}
STILL = {"prefers_reduced_motion": "reduce"}
SIZES = [(360, 740), (1280, 900), (1920, 1080)]


async def faults_of(page: Page) -> list[str]:
    """What axe-core finds: rule, and the elements it is about."""
    await page.run(AXE.read_text() + "; true")
    found: list[dict[str, Any]] = await page.run(
        "axe.run(document, {rules: {'target-size': {enabled: true}}}).then((found) => found.violations.map("
        "(rule) => ({rule: rule.id, about: rule.nodes.slice(0, 3).map((node) => node.html + ' ' + node.failureSummary)})))"
    )
    return [f"{fault['rule']}: {fault['about']}" for fault in found]


async def text_of(page: Page, selector: str) -> str:
    """Text of an element."""
    return str(await page.run(f"document.querySelector({selector!r}).textContent"))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("width", "height"), SIZES, ids=["narrow", "wide", "large"])
async def test_page__shows_everything_and_excludes_nobody(
    chromium: str, width: int, height: int, theme: dict[str, str]
) -> None:
    async with showing(told_network().story, chromium, width=width, height=height, prefer=theme | STILL) as page:
        await page.until("document.querySelectorAll('.curve canvas').length === 3")
        assert await text_of(page, "#lead-step") == "12"
        assert "0.660" in await text_of(page, "#figures")
        assert "proof mismatch (1)" in await text_of(page, "#reasons")
        assert "0x446883" in await text_of(page, "#wallets")
        assert await page.run("document.documentElement.scrollWidth") <= width
        assert await page.run("[...document.querySelectorAll('details')].forEach((each) => (each.open = true))") is None
        await page.until("document.querySelectorAll('#curves-table tbody tr').length === 12")
        assert await faults_of(page) == []
        assert page.complaints == []


async def test_page__asks_nobody_but_its_own_node(chromium: str) -> None:
    async with showing(told_network().story, chromium) as page:
        assert len({url.split("/")[2] for url in page.requested if url.startswith("http")}) == 1
        assert {url.partition(":")[0] for url in page.requested} <= {"http", "data"}


async def test_page__a_verdict_arrives(chromium: str) -> None:
    network = told_network()
    async with showing(network.story, chromium) as page:
        network.submit("worker-2", 13, index=7)
        await page.until("document.querySelector('#submissions').textContent.includes('step 13·7')")
        assert "accepted" in await text_of(page, "#submissions li")
        network.submit("worker-2", 13, index=8, is_wrong=True)
        await page.until("document.querySelector('#submissions li').textContent.includes('13·8')")
        await page.run("document.querySelector('[data-show=accepted]').click()")
        await page.until("!document.querySelector('#submissions').textContent.includes('13·8')")
        assert page.complaints == []


async def test_page__what_peers_say_stays_text(chromium: str) -> None:
    network = told_network(steps=1)
    evil = "<img src=x onerror=alert(1)><script>document.title='owned'</script>"
    network.say("worker-1", "blob.unsent", step=1, index=0, why=evil)
    network.story.take(evil, {"ts": network.at, "event": "node.ready", "seconds": 1.0})
    async with showing(network.story, chromium) as page:
        await page.until("document.querySelector('#log').textContent.includes('onerror')")
        assert await page.run("document.querySelectorAll('main img, main script').length") == 0
        assert await page.run("document.title") == "testnet · intellect-node"
        assert page.complaints == []


async def test_story__of_a_refused_submission_by_keyboard(chromium: str) -> None:
    network = told_network(steps=3)
    async with showing(network.story, chromium) as page:
        await page.run("document.querySelector('[data-show=refused]').click()")
        await page.run("document.querySelector('#submissions button').focus()")
        await page.press("Enter")
        await page.until("document.querySelector('#story').open")
        said = await text_of(page, "#story-body")
        for part in (
            "Sampled",
            "Sent",
            "validator-1: fault, sampling mismatch",
            "Refused: sampling mismatch",
            "a quorum of 2 refuses",
        ):
            assert part in said
        assert await faults_of(page) == []
        await page.run("document.querySelector('#story .facts button').click()")
        await page.until("document.querySelector('#story-title').textContent === 'worker-1'")
        assert "What it said" in await text_of(page, "#story-body")
        assert await faults_of(page) == []
        await page.press("Escape")
        await page.until("!document.querySelector('#story').open")
        assert await page.run("document.activeElement.closest('#submissions') !== null")


async def test_story__credited_and_claimable(chromium: str) -> None:
    network = told_network(steps=2)
    network.story.credit(4, [("12D3KooWworker-2", 2, 0)])
    async with showing(network.story, chromium) as page:
        await page.run("location.hash = 'submission=worker-2%2F2%2F0'; location.reload()")
        await page.until("document.querySelector('#story') && document.querySelector('#story').open")
        assert "Credited in tally 4" in await text_of(page, "#story-body")
        assert "Claimable" in await text_of(page, "#story-body")


async def test_graph__one_tab_stop_and_arrows(chromium: str) -> None:
    async with showing(told_network(steps=1).story, chromium) as page:
        await page.run("document.querySelector('.dot[tabindex=\"0\"]').focus()")
        first = await page.run("document.activeElement.textContent")
        await page.press("ArrowRight")
        second = await page.run("document.activeElement.textContent")
        assert first.startswith("worker-1, worker ready")
        assert second.startswith("worker-2, worker ready")
        assert await page.run("document.querySelectorAll('.dot[tabindex=\"0\"]').length") == 1


async def test_page__node_gone_and_back(chromium: str) -> None:
    network = told_network(steps=1)
    async with showing(network.story, chromium) as page:
        network.story.close()
        await page.until("document.querySelector('#link').textContent === 'ended'")
        assert "knew last" in await text_of(page, "#notice")


async def test_page__single_node_shows_what_it_knows(chromium: str) -> None:
    network = told_network(steps=0)
    network.story.describe(kind="node", role="worker", node="12D3KooWworker-1", title="worked sums")
    network.submit("worker-1", 1)
    async with showing(network.story, chromium) as page:
        assert await page.run("document.querySelector('#contributions').hidden")
        assert "answers sampled here" in await text_of(page, "#curves-note")
        assert "of this node" in await text_of(page, "#figures")
        assert page.complaints == []


async def test_page__two_hundred_nodes_and_ten_thousand_events(chromium: str) -> None:
    network = told_network(steps=13, workers=150, validators=30, relays=20)
    assert network.said > 10_000
    async with showing(network.story, chromium, prefer=STILL) as page:
        await page.until("document.querySelectorAll('.dot').length === 202")
        assert await page.run("performance.now()") < 30_000  # on a machine that does much else
        for worker in network.names("worker")[:60]:
            network.submit(worker, 14)
        await page.until("document.querySelector('#submissions').textContent.includes('step 14')")
        assert await faults_of(page) == []
        assert page.complaints == []
