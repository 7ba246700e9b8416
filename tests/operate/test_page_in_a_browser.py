"""The live page in headless Chromium: by keyboard, at 600 px, and without a request to another host."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import pytest
from support.routing import routing, run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.long


def look(url: str, browser: Any, width: int) -> tuple[set[str], list[str], int]:
    """Use the page; return the hosts that it has asked, its errors, and the width that it takes."""
    page = browser.new_page(viewport={"width": width, "height": 800})
    hosts, errors = set[str](), list[str]()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.goto(url)
    row = page.locator("#slowest tr[tabindex]").first
    row.wait_for(timeout=60_000)
    row.focus()
    page.keyboard.press("Enter")
    page.locator("#content td").first.wait_for(timeout=60_000)
    text = page.locator("#content").inner_text()
    assert "along its critical path" in text
    assert EVIL in text, "what a client names is shown as it is"
    page.keyboard.press("Escape")
    assert not page.locator("#explained").evaluate("dialog => dialog.open")
    taken = int(page.evaluate("document.documentElement.scrollWidth"))
    page.close()
    return hosts, errors, taken


def test_the_page_works_by_keyboard_and_asks_its_own_server_alone() -> None:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine")

    def browse(url: str) -> None:
        with api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            for width in (1400, 600):
                hosts, errors, taken = look(url, browser, width)
                assert (hosts, errors) == ({url.split("/")[2]}, [])
                assert taken <= width
            browser.close()

    async def main() -> None:
        async with routing("well") as at:
            assert (await at.ask(model=EVIL, prompt="x " * 300)).status_code == 200
            await asyncio.to_thread(browse, at.router.url)

    run(main())
