"""The binary subprotocols' golden vectors, and the limits of whole messages."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from seedance.protocol.binary_codec import ClientDecoder, ServerDecoder, ServerEncoder
from seedance.protocol.compression import Compressor
from seedance.protocol.envelope import PAYLOAD_BYTES_MAX, seal
from seedance.protocol.errors import CloseCode, ProtocolFault, SeedanceError
from seedance.protocol.frames import Generate, Token
from seedance.protocol.json_codec import decode_client, decode_server, encode_server
from tests.support.binary_vectors import BINARY_VECTORS, encoded_client, encoded_server

GOLDEN = json.loads(BINARY_VECTORS.read_text())
SERVER, CLIENT = GOLDEN["server"], GOLDEN["client"]
FORMS = pytest.mark.parametrize("form", ["proto", "zstd"])


def test_golden_messages_are_what_the_encoders_write() -> None:
    """Byte for byte; compressed ones depend on the compressor's version and are only read."""
    assert encoded_server(SERVER["ticks"], compressed=False) == SERVER["proto"]
    assert encoded_client(CLIENT["ticks"], compressed=False) == CLIENT["proto"]


@FORMS
def test_golden_server_messages(form: str) -> None:
    """A client reads the frames that their JSON texts are."""
    decoder = ServerDecoder(compressed=form == "zstd")
    found = [frame for hexed in SERVER[form] for frame in decoder.feed(bytes.fromhex(hexed))]
    assert found == [decode_server(text) for tick in SERVER["ticks"] for text in tick]


@FORMS
def test_golden_client_messages(form: str) -> None:
    """A gateway reads the frames that their JSON texts are; the bare form is a matter of JSON."""
    decoder = ClientDecoder(compressed=form == "zstd")
    messages = map(bytes.fromhex, CLIENT[form])
    found = [frame for data in messages for batch in decoder.feed(data) for frame in batch]
    wanted = [decode_client(text) for tick in CLIENT["ticks"] for text in tick]
    assert found == [replace(w, bare=False) if isinstance(w, Generate) else w for w in wanted]


@pytest.mark.parametrize("vector", GOLDEN["refused"], ids=lambda vector: vector["why"])
def test_golden_refusals(vector: dict[str, str]) -> None:
    """What is refused is refused by the field's name."""
    decoder = ClientDecoder(compressed=False)
    [[refusal]] = decoder.feed(bytes.fromhex(vector["message"]))
    assert isinstance(refusal, SeedanceError)
    assert refusal.field == vector["field"]


@pytest.mark.parametrize("vector", GOLDEN["fault"], ids=lambda vector: vector["why"])
def test_golden_faults(vector: dict[str, str]) -> None:
    """What is no batch ends the connection with 4400."""
    with pytest.raises(ProtocolFault) as fault:
        list(map(list, ClientDecoder(compressed=False).feed(bytes.fromhex(vector["message"]))))
    assert fault.value.close_code is CloseCode.PROTOCOL_ERROR


def test_a_message_says_no_more_than_its_limit() -> None:
    """A client's message expands to 1 MiB at most, over all its envelopes (§5)."""
    compressor = Compressor()
    # A field that nobody knows: 600 kB of nothing.
    payload = b"\xfa\x7f\xc0\xcf\x24" + bytes(600_000)
    first, second = (seal(compressor.compress(payload)) for _ in range(2))
    decoder = ClientDecoder(compressed=True)
    assert [list(batch) for batch in decoder.feed(first)] == [[]]
    assert [list(batch) for batch in decoder.feed(second)] == [[]]
    with pytest.raises(ProtocolFault):
        list(ClientDecoder(compressed=True).feed(first + second))


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("delta", ["x" * 3900, "\U0001f642" * 975, "\0" * 600])
def test_a_token_frame_is_never_larger_than_its_json(compressed: bool, delta: str) -> None:
    """So what was cut to 4 KiB for JSON is within 4 KiB here (§1)."""
    frame = (Token("s", 0, delta, 1_786_580_000_000), 1)
    [message] = ServerEncoder(compressed=compressed).encode([frame])
    assert len(message) <= len(encode_server(*frame).encode()) <= 4096
    assert len(message) < PAYLOAD_BYTES_MAX
