"""`seedance.client.receipts`: what `client.verify` makes of completions and receipts."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.receipts import ReceiptSigner, load_signer, make_key_file
from seedance.client.receipts import ReceiptDesk
from seedance.client.stream import Completion
from seedance.protocol.frames import Timing, Usage
from seedance.protocol.receipt import TextDigest
from seedance.receipt import ReceiptError

USAGE = Usage(5, 0, 3)
NOBODY = ["ws://127.0.0.1:9/v2/infer"]


@pytest.fixture
def signer(tmp_path: Path) -> ReceiptSigner:
    make_key_file(tmp_path / "key.pem")
    made = load_signer([str(tmp_path / "key.pem")])
    assert made is not None
    return made


@pytest.fixture
def desk(signer: ReceiptSigner) -> ReceiptDesk:
    # The endpoint answers nobody: what is checked is checked offline.
    return ReceiptDesk(lambda: NOBODY, [signer.public_keys[0]["public_key"]])


def _completion(signer: ReceiptSigner) -> Completion:
    digest = TextDigest()
    digest.update(b"one two three")
    receipt = signer.of_session("S")("q", digest, USAGE)
    return Completion("q", "one two three", "stop", USAGE, Timing(), receipt=receipt)


async def test_a_completion_is_checked_as_it_is(signer: ReceiptSigner, desk: ReceiptDesk) -> None:
    """Its own id, text and usage against its receipt."""
    await desk.verify(_completion(signer), None)


@pytest.mark.parametrize(
    "change",
    [{"text": "one two four"}, {"id": "p"}, {"usage": Usage(5, 0, 2)}, {"receipt": None}],
    ids=lambda change: next(iter(change)),
)
async def test_a_completion_that_is_not_the_receipts(
    signer: ReceiptSigner, desk: ReceiptDesk, change: dict[str, object]
) -> None:
    """Another text, id or usage than was signed, or no receipt at all."""
    with pytest.raises(ReceiptError):
        await desk.verify(replace(_completion(signer), **change), None)


async def test_unknown_keys_are_asked_for(signer: ReceiptSigner) -> None:
    """Without given keys the gateway is asked, and one that cannot be is an `OSError`."""
    with pytest.raises(OSError, match="refused"):
        await ReceiptDesk(lambda: NOBODY, None).verify(_completion(signer), None)


async def test_a_gateway_that_died_is_not_the_only_one_asked(signer: ReceiptSigner) -> None:
    """The gateway whose turn it is answers nobody: the next one that is known names the keys."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"data": signer.public_keys}).encode()
        writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        desk = ReceiptDesk(lambda: [*NOBODY, f"ws://127.0.0.1:{port}/v2/infer"], None)
        await desk.verify(_completion(signer), None)
