"""Receipts of real processes: whoever dies in mid-stream, the receipt is of the whole text, and holds."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from seedance import SeedanceClient
from seedance.receipt import ReceiptError
from tests.support.mesh import local_mesh
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.waiting import SURELY_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

REPEAT = 25
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()
TOKENS = len(SPLIT_WORDS) * REPEAT


@pytest.mark.parametrize("victims", [("gateway-0",), ("gateway-0", "inference-0")], ids="+".join)
def test_a_receipt_survives_kill_9(tmp_path: Path, victims: tuple[str, ...]) -> None:
    """The gateway that hashed the text so far dies, and also the instance that knew it: the next one signs for all of it."""
    with local_mesh(tmp_path, "--instances", "2") as mesh:
        keys = f"{mesh.url}/v1/receipts/key"
        with urllib.request.urlopen(keys, timeout=SURELY_S) as reply:
            public = [entry["public_key"] for entry in json.load(reply)["data"]]
        with SeedanceClient(mesh.ws, receipt_keys=public) as client:
            messages = script_messages(SPLIT_WORDS, dt_ms=5, repeat=REPEAT)
            stream = client.chat(messages=messages, receipt=True)
            text = ""
            for count, chunk in enumerate(stream, 1):
                text += chunk.delta
                if count == 40:
                    for victim in victims:
                        mesh.kill(victim)
            assert text == TEXT
            assert stream.receipt is not None
            client.verify(stream.receipt, text=text)
            assert stream.receipt["id"] == stream.id
            assert stream.receipt["usage"]["completion_tokens"] == TOKENS
            with pytest.raises(ReceiptError):
                client.verify(stream.receipt, text=text + "!")
            tampered = stream.receipt | {"usage": {**stream.receipt["usage"], "total_tokens": 1}}
            with pytest.raises(ReceiptError):
                client.verify(tampered, text=text)
