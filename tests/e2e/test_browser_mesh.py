"""The chat page against the real mesh: real processes, real sockets, a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.async_api import expect

from tests.support.browser import CHROMIUM, open_page
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import script

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.browser,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

TOKENS = [b"Hello ", b"\xf0\x9f", b"\x98\x81", " 量子".encode(), b"\n"]
TEXT = (b"".join(TOKENS) * 40).decode().strip()


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """One mesh for the file."""
    with local_mesh(tmp_path_factory.mktemp("mesh")) as running:
        yield running


async def test_the_page_streams_from_the_mesh(mesh: LocalMesh) -> None:
    """The page at `/` answers, measures, lists the models, and nothing on it goes wrong."""
    async with open_page(mesh.url.replace("127.0.0.1", "localhost") + "/") as (page, trouble):
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        await page.get_by_label("Message").fill(script(TOKENS, dt_ms=2, repeat=40))
        await page.keyboard.press("Enter")
        answer = page.locator(".message:not(.mine)")
        await expect(answer.locator(".text")).to_have_text(TEXT)
        await expect(answer.locator(".metrics")).to_contain_text("200 tokens")
        await expect(answer.locator(".metrics")).to_contain_text("tokens/s")
        await page.get_by_text("Settings").click()
        await expect(page.get_by_label("Model").locator("option")).not_to_have_count(1)
        assert trouble == []


async def test_the_page_survives_its_gateway(mesh: LocalMesh) -> None:
    """The gateway that served the page is killed in mid-answer: the text is whole all the same."""
    async with open_page(mesh.url + "/") as (page, _):
        await page.get_by_label("Message").fill(script(TOKENS, dt_ms=10, repeat=40))
        await page.keyboard.press("Enter")
        answer = page.locator(".message:not(.mine)")
        await expect(answer.locator(".text")).to_contain_text("Hello")
        killed = mesh.kill("gateway-0")
        await expect(answer.locator(".text")).to_have_text(TEXT)
        await expect(answer.locator(".metrics")).to_contain_text("resumed")
    mesh.back("gateway-0", killed)
