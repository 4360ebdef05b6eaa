"""docs/protocol.md has the names and values that the code has."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from seedance.protocol import frames
from seedance.protocol.errors import (
    CLOSE_RETRY_NEVER,
    CLOSE_RETRY_RESUME,
    ERRORS,
    CloseCode,
    ErrorCode,
)
from seedance.protocol.request import GenerateRequest, Sampling

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "protocol.md").read_text()
# Not on the WebSocket: how OpenAI's shape and gRPC spell things, and what parallel choices are.
INTERNAL = {"prompt_token_ids", "stop_token_ids", "choice"}


def _rows(first: str) -> dict[str, list[str]]:
    """Table rows whose first cell matches, by that cell, without back-quotes."""
    rows = [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("|")
    ]
    return {row[0]: row[1:] for row in rows if re.fullmatch(first, row[0])}


def test_the_table_of_errors() -> None:
    """Every code is there, with its HTTP status, OpenAI type, gRPC status and retry advice."""
    table = PAGE.partition("<!-- errors -->\n")[2].partition("<!-- end -->")[0]
    rows = table.split("\n", 2)[2]
    assert rows == "".join(
        f"| `{r.code}` | {r.http_status} | `{r.openai_type}` | `{r.grpc_status}` |\n"
        for r in ERRORS.values()
    )
    advice = {row[0]: row[-1] for row in _retry_rows()}
    assert advice == {c.value: "yes" if ERRORS[c].retryable else "no" for c in ErrorCode}


def _retry_rows() -> list[list[str]]:
    section = PAGE.partition("### Error codes")[2].partition("###")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[c.strip().strip("`") for c in line.strip("|").split("|")] for line in lines]


def test_the_table_of_close_codes() -> None:
    """Every close code is there with what a client does after it."""
    advice = {"reconnects and resumes": CLOSE_RETRY_RESUME, "never retries": CLOSE_RETRY_NEVER}
    told: dict[int, str] = {}
    for cell, rest in _rows(r"\d{4}(, \d{4})*").items():
        for code in cell.split(", "):
            told[int(code)] = rest[-1]
    assert set(told) >= set(CloseCode)
    for words, codes in advice.items():
        assert {code for code, said in told.items() if said == words} == codes


@pytest.mark.parametrize("shape", [GenerateRequest, Sampling, frames.Generate])
def test_every_field_of_a_request_is_explained(shape: type) -> None:
    """No field of `generate` is a secret."""
    names = {field.name for field in dataclasses.fields(shape)}
    names -= INTERNAL | {"sampling", "request", "bare"}
    assert not {name for name in names if f"`{name}`" not in PAGE}


@pytest.mark.parametrize(
    "shape",
    [
        frames.SessionFrame,
        frames.Heartbeat,
        frames.WindowRange,
        frames.Resumed,
        frames.Accepted,
        frames.Token,
        frames.Flush,
        frames.Done,
        frames.Usage,
        frames.Timing,
        frames.ErrorFrame,
        frames.Checkpoint,
        frames.PressureFrame,
        frames.GoAway,
    ],
)
def test_every_field_of_a_server_frame_is_explained(shape: type) -> None:
    """Nor is one of what the server sends."""
    names = {field.name for field in dataclasses.fields(shape)}
    assert not {n for n in names if not re.search(rf"`(\w+\.)?{n}`", PAGE)}


def test_the_window_and_the_heartbeat_are_those_of_the_code() -> None:
    """The defaults told in §2 and §4 are the defaults."""
    window, heartbeat = frames.WindowRange(), frames.Heartbeat()
    assert f"{window.initial} at first" in PAGE
    assert f"{window.min}…{window.max}" in PAGE
    for layer in ("connection", "session", "stream"):
        row = next(line for line in PAGE.splitlines() if line.startswith(f"| {layer}"))
        assert f"| {getattr(heartbeat, layer)} s |" in row
