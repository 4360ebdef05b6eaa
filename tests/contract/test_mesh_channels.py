"""No way between services is left without mutual TLS: each channel and server is told of the identity."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("gateway", "inference", "router", "metering")
# The address, or the services' names; and the identity.
ARGUMENTS = {"open_channel": 2, "RpcServer": 2}
SOURCES = [path for package in SERVICES for path in sorted((ROOT / package).rglob("*.py"))]


def _calls(path: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_channel_has_its_identity(path: Path) -> None:
    """`open_channel` and `RpcServer` are not called without; nothing else opens a plain channel."""
    for call in _calls(path):
        name = call.func.id
        if name in ARGUMENTS:
            given = len(call.args) + len(call.keywords)
            assert given >= ARGUMENTS[name], f"line {call.lineno}: {name} without an identity"
    assert "insecure_channel" not in path.read_text()


def test_the_calls_are_found() -> None:
    """The test above sees them: a renamed function would make it say nothing."""
    found = {call.func.id for path in SOURCES for call in _calls(path)}
    assert {"open_channel", "RpcServer"} <= found
