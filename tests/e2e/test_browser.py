"""The chat page in a real headless Chromium, against a gateway that does as it is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.support.browser import CHROMIUM, open_page
from tests.support.scripted_gateway import TEXT, Script, ScriptedGateway
from tests.support.waiting import wait_until

STATIC = Path(__file__).resolve().parents[2] / "gateway" / "static"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]


def serve(script: Script) -> ScriptedGateway:
    return ScriptedGateway(script, static=STATIC)


def page_of(gateway: ScriptedGateway) -> str:
    return gateway.base_url.replace("ws:", "http:") + "/"


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Message").fill(question)
    await page.keyboard.press("Enter")


def answer(page: Page, number: int = 0):
    return page.locator(".message:not(.mine)").nth(number)


async def test_a_question_is_answered_and_measured() -> None:
    """Enter sends; the text streams in whole; tokens/s and time to first token are shown."""
    async with (
        serve(Script(pace_s=0.002)) as gateway,
        open_page(page_of(gateway)) as (page, trouble),
    ):
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        await ask(page, "你好，请用一句话介绍量子计算")
        await expect(page.locator(".message.mine .text")).to_have_text(
            "你好，请用一句话介绍量子计算"
        )
        await expect(answer(page).locator(".text")).to_have_text(TEXT.strip())
        metrics = answer(page).locator(".metrics")
        await expect(metrics).to_contain_text("tokens/s")
        await expect(metrics).to_contain_text("first token after")
        await expect(page.locator("#announcer")).to_have_text(TEXT.strip())
        await expect(page.get_by_label("Message")).to_be_focused()
        assert trouble == []


async def test_a_cut_is_shown_and_healed() -> None:
    """Cut twice in mid-stream, the page says so, resumes, and its text is whole."""
    script = Script(pace_s=0.005, cuts=(10, 10))
    async with serve(script) as gateway, open_page(page_of(gateway)) as (page, _):
        await page.evaluate(
            """() => {
                window.states = [];
                const state = document.getElementById('state');
                new MutationObserver(() => states.push(state.dataset.state))
                    .observe(state, {attributes: true});
            }"""
        )
        await ask(page, "hi")
        await expect(answer(page).locator(".text")).to_have_text(TEXT.strip())
        await expect(answer(page).locator(".metrics")).to_contain_text("resumed 2×")
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        assert {"connecting", "resuming", "open"} <= set(await page.evaluate("states"))
        assert len(gateway.generated) == 1


@pytest.mark.parametrize("by", ["button", "Escape"])
async def test_stop_ends_the_answer(by: str) -> None:
    """The stop button and Escape end the answer at the server; what came stays."""
    async with serve(Script(pace_s=0.02)) as gateway, open_page(page_of(gateway)) as (page, _):
        await ask(page, "hi")
        await expect(answer(page).locator(".text")).to_contain_text("Qubits hold")
        if by == "button":
            await page.get_by_role("button", name="Stop").click()
        else:
            await page.keyboard.press("Escape")
        await expect(answer(page).locator(".metrics")).to_contain_text("stopped")
        await expect(page.get_by_role("button", name="Stop")).to_be_hidden()
        await wait_until(lambda: [s for s in gateway.sessions.values() if s.cancelled])
        await expect(page.get_by_label("Message")).to_be_focused()


async def test_the_conversation_is_sent_kept_and_ended() -> None:
    """Earlier turns go with the next question and outlive a reload; a new chat begins empty."""
    async with serve(Script(text="Yes.")) as gateway, open_page(page_of(gateway)) as (page, _):
        await ask(page, "first")
        await expect(answer(page, 0).locator(".text")).to_have_text("Yes.")
        await ask(page, "second")
        await expect(answer(page, 1).locator(".text")).to_have_text("Yes.")
        session = next(iter(gateway.sessions.values()))
        turns = [m.content for m in list(session.requests.values())[-1].request.messages]
        assert turns == ["first", "Yes.", "second"]
        await page.reload()
        await expect(page.locator(".message")).to_have_count(4)
        await page.get_by_role("button", name="New chat").click()
        await expect(page.locator(".message")).to_have_count(0)
        await expect(page.get_by_role("heading", name="Ask something")).to_be_visible()
        await ask(page, "third")
        await expect(answer(page, 0).locator(".text")).to_have_text("Yes.")
        last = [list(s.requests.values())[-1] for s in gateway.sessions.values()][-1]
        assert [m.content for m in last.request.messages] == ["third"]


async def test_text_is_only_ever_text() -> None:
    """Markup in an answer is shown, not obeyed; fenced code becomes a code block."""
    evil = '<img src=x onerror="document.title=1"> & <b>bold</b>\n```js\nif (a < b) {}\n```\nend'
    async with serve(Script(text=evil)) as gateway, open_page(page_of(gateway)) as (page, trouble):
        await ask(page, "hi")
        text = answer(page).locator(".text")
        await expect(text.locator("pre")).to_have_text("if (a < b) {}\n")
        await expect(text.locator("p").first).to_have_text(evil.split("\n", maxsplit=1)[0])
        await expect(text.locator("p").last).to_have_text("end")
        assert await text.locator("img, b").count() == 0
        assert trouble == []


async def test_code_in_a_sentence_is_marked() -> None:
    """A word between backticks is code, and only ever text; an unclosed one stays as it came."""
    answered = "Use `a < b` or `<b>`, never `this"
    async with serve(Script(text=answered)) as gateway, open_page(page_of(gateway)) as (page, _):
        await ask(page, "hi")
        text = answer(page).locator(".text")
        await expect(text).to_have_text("Use a < b or <b>, never `this")
        await expect(text.locator("code")).to_have_text(["a < b", "<b>"])
        assert await text.locator("b").count() == 0


async def test_a_refusal_is_told_and_can_be_tried_again() -> None:
    """An error is shown with its words and a button; the button asks the same again."""
    script = Script(text="Now it works.", closes=(0, 4401))
    async with serve(script) as gateway, open_page(page_of(gateway)) as (page, _):
        await expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        gateway.cut()
        await expect(page.get_by_text("Not connected")).to_be_visible()
        gateway.script.closes = (0, 4401, 4401)
        await ask(page, "hi")
        await expect(page.get_by_text("the key was refused", exact=True)).to_be_visible()
        gateway.script.closes = ()
        await page.get_by_role("button", name="Try again").click()
        await expect(answer(page).locator(".text")).to_have_text("Now it works.")
        await expect(page.locator(".message")).to_have_count(2)


async def test_hands_and_ears() -> None:
    """Everything has a name and is reached by keyboard; the answer is announced once, whole."""
    async with serve(Script(pace_s=0.002)) as gateway, open_page(page_of(gateway)) as (page, _):
        await page.evaluate(
            """() => {
                window.said = [];
                new MutationObserver(() => said.push(document.getElementById('announcer').textContent))
                    .observe(document.getElementById('announcer'), {childList: true});
            }"""
        )
        nameless = await page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, textarea, summary')]
                .filter((e) => !(e.labels?.length || e.textContent.trim()))
                .map((e) => e.outerHTML)"""
        )
        assert nameless == []
        message = page.get_by_label("Message")
        await message.focus()
        await page.keyboard.type("line one")
        await page.keyboard.press("Shift+Enter")
        await page.keyboard.type("line two")
        assert await message.input_value() == "line one\nline two"
        await page.keyboard.press("Enter")
        await expect(page.locator("#announcer")).to_have_text(TEXT.strip())
        assert await page.evaluate("said") == ["The answer begins.", TEXT]
        reached = []
        for _ in range(12):
            await page.keyboard.press("Tab")
            reached.append(
                await page.evaluate(
                    "document.activeElement?.id || document.activeElement?.textContent.trim()"
                )
            )
        assert {"prompt", "send", "new-chat", "Settings"} & set(reached) >= {"new-chat", "Settings"}
        assert await page.locator("html").get_attribute("lang") == "en"


async def test_a_narrow_screen_needs_no_sideways_scrolling() -> None:
    """On a phone's width everything fits, in the dark too."""
    async with (
        serve(Script(text="wide " + "x" * 400)) as gateway,
        open_page(page_of(gateway), dark=True, width=360, height=640) as (page, _),
    ):
        await ask(page, "hi")
        await expect(answer(page).locator(".metrics")).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == "rgb(16, 17, 24)"


async def test_four_lines_without_an_sdk() -> None:
    """Plain JavaScript gets the text: open, send the bare form, read `delta` where there is one."""
    async with serve(Script()) as gateway, open_page(page_of(gateway)) as (page, _):
        async with asyncio.timeout(10):
            text = await page.evaluate(
                """(url) => new Promise((resolve) => {
                    let text = '';
                    const socket = new WebSocket(url + '?mode=concurrent&instance=high-perf');
                    socket.onopen = () => socket.send(JSON.stringify(
                        {model: '', stream: true, messages: [{role: 'user', content: 'hi'}]}));
                    socket.onmessage = (event) => {
                        const frame = JSON.parse(event.data);
                        text += frame.delta ?? '';
                        if (frame.type === 'done') resolve(text);
                    };
                })""",
                gateway.url,
            )
        assert text == TEXT
