"""Text stays text, markup stays markup."""

from __future__ import annotations

from metering.paper.sheet import element, facts, join, number_class, row, sheet

EVIL = '<b a="&">'
HARMLESS = "&lt;b a=&quot;&amp;&quot;&gt;"


def test_text_is_escaped_once() -> None:
    """Wherever a text enters, and however deep its element ends up."""
    inner = element("td", EVIL, title=EVIL)
    assert inner == f'<td title="{HARMLESS}">{HARMLESS}</td>'
    assert element("tr", join((inner,))) == f"<tr>{inner}</tr>"
    assert element("tr", inner) == f"<tr>{inner}</tr>"
    assert facts({EVIL: EVIL}).count(HARMLESS) == 2
    assert row([EVIL], 1) == f"<tr><td>{HARMLESS}</td></tr>"


def test_names_of_attributes() -> None:
    """What Python has a word for ends in `_`; other `_` are hyphens; empty ones are left out."""
    assert (
        element("p", "x", class_="a", aria_label="b", id="") == '<p class="a" aria-label="b">x</p>'
    )


def test_numbers_stand_to_the_right() -> None:
    """From the given column on."""
    assert row(["a", "1"], 1) == '<tr><td>a</td>\n<td class="n">1</td></tr>'


def test_sheet_is_complete_in_itself() -> None:
    """Nothing is fetched and nothing runs: no script, no link, no address."""
    page = sheet(EVIL, [element("h1", "x")]).decode()
    assert f"<title>{HARMLESS}</title>" in page
    assert "@page" in page
    assert not any(word in page for word in ("<script", "<link", "http:", "https:", "url("))


def test_very_many_digits_are_broken() -> None:
    """A quantity to the last digit pushes no amount off the page."""
    assert row(["a", "0.010264545631163815873016"], 1).count('class="n long"') == 1
    assert number_class("0.000000000004") == "n"
