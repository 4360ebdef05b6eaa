"""A real headless Chromium for a test: the system's, or the one that Playwright keeps."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator

from playwright import sync_api
from playwright.async_api import Page, async_playwright, expect

__all__ = ["CHROMIUM", "Trouble", "browser_page", "open_page"]

CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_MS = 15_000
expect.set_options(timeout=TIMEOUT_MS)


class Trouble(list[str]):
    """What a page complained of: errors, refused loads, requests to other hosts."""


@contextlib.asynccontextmanager
async def open_page(
    url: str,
    *,
    dark: bool = False,
    width: int = 1100,
    height: int = 800,
    any_certificate: bool = False,
) -> AsyncIterator[tuple[Page, Trouble]]:
    """A fresh page at `url`, and the list of what goes wrong on it."""
    host = url.split("/")[2]
    trouble = Trouble()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            page = await browser.new_page(
                viewport={"width": width, "height": height},
                color_scheme="dark" if dark else "light",
                reduced_motion="reduce",
                ignore_https_errors=any_certificate,
            )
            page.set_default_timeout(TIMEOUT_MS)
            page.on("pageerror", lambda error: trouble.append(f"error: {error}"))
            page.on(
                "console",
                lambda line: (
                    trouble.append(line.text)
                    if line.type == "error" and "/v1/models" not in (line.location.get("url") or "")
                    else None
                ),
            )
            page.on(
                "request",
                lambda request: (
                    trouble.append(f"foreign: {request.url}")
                    if request.url.split("/")[2] != host
                    else None
                ),
            )
            await page.goto(url)
            yield page, trouble
        finally:
            await browser.close()


@contextlib.contextmanager
def browser_page() -> Iterator[sync_api.Page]:
    """A fresh, empty page for a test without a loop."""
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser.new_page()
        finally:
            browser.close()
