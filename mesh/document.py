"""YAML read node by node, so that every refusal can name its line.

YAML's own typing is left aside: money is taken from the letters in the file, never from a binary
float (CASES 91), and what is unquoted and looks like a float is refused before somebody relies on
it elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import NoReturn

import yaml

__all__ = ["Document", "DocumentError"]

_STRING = "tag:yaml.org,2002:str"
_INTEGER = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_DATE = "tag:yaml.org,2002:timestamp"
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,18})?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_COUNT = re.compile(r"[0-9]{1,15}")


class DocumentError(Exception):
    """A plan file that cannot be used: `FILE:LINE: what is wrong; what to do`."""


class Document:
    """One YAML text under the name that messages call it by."""

    def __init__(self, text: bytes, name: str) -> None:
        self._name = name
        try:
            root = yaml.compose(text.decode(), Loader=yaml.SafeLoader)
        except UnicodeDecodeError:
            raise DocumentError(f"{name}:1: not UTF-8; save the file as UTF-8") from None
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise DocumentError(
                f"{name}:{line}: no YAML ({error.problem}); mend the syntax"
            ) from None
        except (yaml.YAMLError, RecursionError):
            raise DocumentError(f"{name}:1: no YAML; mend the syntax") from None
        if root is None:
            raise DocumentError(f"{name}:1: the file is empty; begin with `format: 1`")
        self.root: yaml.Node = root

    def refuse(self, node: yaml.Node, wrong: str, remedy: str) -> NoReturn:
        """Raise `DocumentError` at the node."""
        raise DocumentError(f"{self._name}:{self.line(node)}: {wrong}; {remedy}")

    def line(self, node: yaml.Node) -> int:
        """The node's line, counted from 1."""
        return int(node.start_mark.line) + 1

    def pairs(self, node: yaml.Node) -> dict[str, yaml.Node]:
        """A mapping's values by key, each key once."""
        if not isinstance(node, yaml.MappingNode):
            self.refuse(node, "a mapping is due", "write `key: value` lines")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.string(key)
            if name in found:
                self.refuse(key, f"`{name}` stands twice", "keep one of them")
            found[name] = value
        return found

    def fields(
        self, node: yaml.Node, required: tuple[str, ...], optional: tuple[str, ...] = ()
    ) -> Mapping[str, yaml.Node]:
        """A mapping whose keys are known, and of which none that is required is missing."""
        found = self.pairs(node)
        known = (*required, *optional)
        for name, value in found.items():
            if name not in known:
                self.refuse(value, f"unknown field `{name}`", f"known here: {', '.join(known)}")
        for name in required:
            if name not in found:
                self.refuse(node, f"`{name}` is missing", "add it")
        return found

    def items(self, node: yaml.Node) -> list[yaml.Node]:
        """A list that has something in it."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.refuse(node, "a list is due", "write at least one `- item`")
        return list(node.value)

    def string(self, node: yaml.Node) -> str:
        """A text that is not empty. Numbers and dates are not texts: they want quotes."""
        if not isinstance(node, yaml.ScalarNode) or node.tag != _STRING or not node.value:
            self.refuse(node, "a text is due", "put it in quotes")
        return str(node.value)

    def decimal(self, node: yaml.Node, name: str) -> Decimal:
        """A price: `"0.08"` in quotes, or a whole number."""
        if not isinstance(node, yaml.ScalarNode):
            self.refuse(node, f"`{name}` is no number", 'write a price such as "0.08"')
        text = str(node.value)
        if node.tag == _FLOAT:
            self.refuse(node, f"`{name}` is a binary float", f'write "{text}" in quotes')
        if text.startswith("-"):
            self.refuse(node, f"`{name}` is negative", "a price is 0 or more")
        if node.tag not in {_STRING, _INTEGER} or not _DECIMAL.fullmatch(text):
            remedy = 'write a decimal such as "0.08", with at most 18 digits after the point'
            self.refuse(node, f"`{name}` is no decimal", remedy)
        return Decimal(text)

    def count(self, node: yaml.Node, name: str, smallest: int, largest: int) -> int:
        """A whole number within bounds."""
        is_count = isinstance(node, yaml.ScalarNode) and node.tag == _INTEGER
        if not is_count or not _COUNT.fullmatch(node.value):
            self.refuse(node, f"`{name}` is no whole number", "write digits only")
        if not smallest <= int(node.value) <= largest:
            remedy = f"it is between {smallest} and {largest}"
            self.refuse(node, f"`{name}` is out of range", remedy)
        return int(node.value)

    def day(self, node: yaml.Node, name: str) -> date:
        """A date as YYYY-MM-DD, quoted or not."""
        text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
        if node.tag not in {_STRING, _DATE} or not _DAY.fullmatch(text):
            self.refuse(node, f"`{name}` is no date", "write YYYY-MM-DD")
        try:
            return date.fromisoformat(text)
        except ValueError:
            self.refuse(node, f"`{name}` is no day of the calendar", "write YYYY-MM-DD")
