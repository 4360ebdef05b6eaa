"""The golden vectors, as every client replays them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seedance.protocol.errors import ProtocolFault, SeedanceError
from seedance.protocol.json_codec import decode_client, decode_server, encode_client, encode_server
from tests.support.conversation import CONVERSATIONS, VECTORS, play

FRAMES = json.loads((VECTORS / "frames.json").read_text())


@pytest.mark.parametrize("text", FRAMES["server"])
def test_golden_server_frames(text: str) -> None:
    """A server frame decodes, and encodes to the very text."""
    assert encode_server(*decode_server(text)) == text


@pytest.mark.parametrize("text", FRAMES["client"])
def test_golden_client_frames(text: str) -> None:
    """A client frame decodes, and encodes to the very text."""
    assert encode_client(decode_client(text)) == text


@pytest.mark.parametrize("vector", FRAMES["refused"], ids=lambda vector: vector["field"])
def test_golden_refusals(vector: dict[str, str]) -> None:
    """What is refused is refused by the field's name."""
    with pytest.raises(SeedanceError) as caught:
        decode_client(vector["text"])
    assert caught.value.field == vector["field"]


@pytest.mark.parametrize("text", FRAMES["fault"])
def test_golden_faults(text: str) -> None:
    """What is no message ends the connection."""
    with pytest.raises(ProtocolFault):
        decode_client(text)


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_golden_conversations(path: Path) -> None:
    """The client machine answers every step of a recorded conversation as recorded."""
    conversation = json.loads(path.read_text())
    for played, recorded in zip(play(conversation), conversation["steps"], strict=True):
        assert played == recorded
