"""HTML by hand, safely: text is escaped where it enters, markup is a type of its own."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

__all__ = ["Markup", "element", "facts", "join", "number_class", "row", "sheet"]

# Characters of a cell with a number that are shown in one line.
LONG_NUMBER = 18


class Markup(str):
    """What `element` made, and nobody else's text."""

    __slots__ = ()


def element(tag: str, content: str = "", **attributes: str) -> Markup:
    """An element whose content is text; give `join(…)` for markup. `class_` is `class`."""
    shown = content if isinstance(content, Markup) else html.escape(content)
    given = "".join(f' {_name(n)}="{html.escape(v)}"' for n, v in attributes.items() if v)
    return Markup(f"<{tag}{given}>{shown}</{tag}>")


def _name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def join(parts: Iterable[Markup]) -> Markup:
    """Elements one after the other."""
    return Markup("\n".join(parts))


def row(cells: Iterable[str], numbers_from: int, *, class_: str = "", tag: str = "td") -> Markup:
    """A table's row; cells from `numbers_from` on stand to the right."""
    made = (
        element(tag, cell, class_=number_class(cell) if at >= numbers_from else "")
        for at, cell in enumerate(cells)
    )
    return element("tr", join(made), class_=class_)


def number_class(text: str) -> str:
    """How a cell with a number looks: one with very many digits is broken, lest it push the others off the page."""
    return "n long" if len(text) > LONG_NUMBER else "n"


def facts(told: Mapping[str, str]) -> Markup:
    """Name and value, several in a line."""
    pairs = (element("div", join((element("dt", n), element("dd", v)))) for n, v in told.items())
    return element("dl", join(pairs))


def sheet(title: str, parts: Iterable[Markup]) -> bytes:
    """The whole page."""
    head = join(
        (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", title),
            element("style", _style()),
        )
    )
    body = element("body", element("main", join(parts)))
    page = element("html", join((element("head", head), body)), lang="en")
    return f"<!doctype html>\n{page}\n".encode()


@cache
def _style() -> Markup:
    text = resources.files("metering.paper").joinpath("paper.css").read_text("utf-8")
    return Markup(text)
