"""What the SDK offers to speak."""

from __future__ import annotations

import subprocess
import sys

import pytest

from seedance.client import AsyncSeedanceClient, SeedanceClient
from seedance.client import subprotocols as own
from seedance.client.subprotocols import offers, talk
from seedance.protocol.errors import CloseCode, ProtocolFault
from seedance.protocol.frames import Cancel, Generate, Ping
from seedance.protocol.request import GenerateRequest


def test_json_is_offered_last() -> None:
    """Any gateway speaks it, so every choice works with every gateway."""
    assert offers("json") == ("seedance.v2.json",)
    assert offers("auto") == offers("proto") == ("seedance.v2.proto", "seedance.v2.json")
    assert offers("proto.zstd") == ("seedance.v2.proto.zstd", "seedance.v2.json")


def test_an_unknown_choice_is_refused() -> None:
    """At once, and it says which there are."""
    with pytest.raises(ValueError, match=r"auto, json, proto, proto\.zstd"):
        AsyncSeedanceClient("ws://x", subprotocol="xml")
    with pytest.raises(ValueError, match="subprotocol"):
        SeedanceClient("ws://x", subprotocol="xml")


def test_a_light_install_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line with the remedy; `auto` goes without."""
    monkeypatch.setattr(own, "_binary_codec", lambda: None)
    with pytest.raises(ImportError, match=r"pip install 'seedance\[binary\]'"):
        offers("proto.zstd")
    assert offers("auto") == offers("json") == ("seedance.v2.json",)


def test_the_sdk_does_not_load_what_json_does_not_need() -> None:
    """`import seedance` brings neither protobuf nor zstd."""
    code = "import sys, seedance; sys.exit('zstandard' in sys.modules or 'google' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("chosen", [None, "seedance.v2.json"])
def test_json_messages_are_text(chosen: str | None) -> None:
    """A gateway that picks nothing speaks JSON (§1)."""
    spoken = talk(chosen)
    assert spoken.encode(Cancel("s")) == '{"type":"cancel","id":"s"}'
    assert list(spoken.decode('{"type":"ping"}')) == [(Ping(), None)]
    with pytest.raises(ProtocolFault):
        list(spoken.decode(b"{}"))


@pytest.mark.parametrize("chosen", ["seedance.v2.proto", "seedance.v2.proto.zstd"])
def test_binary_messages_are_not(chosen: str) -> None:
    """A text message is a fault, and a request over 1 MiB is 1009 before it leaves."""
    spoken = talk(chosen)
    assert isinstance(spoken.encode(Cancel("s")), bytes)
    with pytest.raises(ProtocolFault):
        list(spoken.decode("{}"))
    with pytest.raises(ProtocolFault) as fault:
        spoken.encode(Generate("s", GenerateRequest(prompt="x" * 1024 * 1024)))
    assert fault.value.close_code is CloseCode.MESSAGE_TOO_BIG
