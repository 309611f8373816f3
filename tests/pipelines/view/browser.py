"""Real Chromium, driven headless: nothing is fetched from the network, and all it writes lies in a temporary folder.

The executable is ``AGENTMILL_BROWSER``, or the first of the usual names on the path.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, NARROW = (1280, 900), (420, 900)
PATIENCE_S = 90
"""For a machine that is busy with much else."""


def executable() -> str | None:
    """Where Chromium is, if it is anywhere."""
    return os.environ.get("AGENTMILL_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """A running browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def opened(page: Page, url: str) -> None:
    """Open a page of a view afresh and wait until it is drawn."""
    page.goto("about:blank")
    page.goto(url)
    drawn(page)


def turned_to(page: Page, place: str) -> None:
    """Go to another place in the view that is open, as a link does."""
    page.evaluate("(place) => { location.hash = place; }", place)
    drawn(page)


def drawn(page: Page) -> None:
    """Wait until the page of the current address is drawn.

    Playwright's own waiting evaluates text inside the page, which the policy of a view forbids.
    """
    end = time.monotonic() + PATIENCE_S
    while not page.evaluate("document.body?.dataset.shown === (location.hash || '#/')"):
        if time.monotonic() > end:
            raise TimeoutError(f"{page.url} was not drawn: {page.inner_text('body'):.200}")
        page.wait_for_timeout(5)
