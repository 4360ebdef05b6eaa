"""Checking a receipt offline: that the mesh signed it, and that it is of this text (contract, §3).

    ReceiptKeys(["lYzT…"]).check(done.receipt, text="…")

Needs `seedance[receipts]` (Ed25519 from `cryptography`). The public keys are the mesh's: from whoever runs
it, or from `GET /v1/receipts/key`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import ssl
import urllib.request
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from seedance.protocol.receipt import FORMAT, ReceiptError, TextDigest, signed_bytes

__all__ = ["KEY_PATH", "ReceiptError", "ReceiptKeys", "fetch_keys", "key_id", "to_base64url"]

KEY_PATH = "/v1/receipts/key"
FETCH_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 64 * 1024
_KEY_ID_HEX = 16
_HTTP_OF_WS = {"ws": "http", "wss": "https"}


def to_base64url(data: bytes) -> str:
    """Without padding, as everywhere in the contract."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64url(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def key_id(public_key: bytes) -> str:
    """What a receipt calls a key: the beginning of the hex SHA-256 of its 32 bytes."""
    return hashlib.sha256(public_key).hexdigest()[:_KEY_ID_HEX]


class ReceiptKeys:
    """The public keys that receipts may be signed with, each base64url of 32 bytes.

    Raises `ValueError` for what is no key.
    """

    def __init__(self, public_keys: Iterable[str]) -> None:
        raw = [_from_base64url(key) for key in public_keys]
        self._keys = {key_id(key): Ed25519PublicKey.from_public_bytes(key) for key in raw}

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def check(self, receipt: Mapping[str, Any], *, text: str | None = None) -> None:
        """Return when the receipt holds, and is of `text` where one is given.

        Raises `ReceiptError` otherwise. `id`, `session` and `usage` of a receipt that holds are true.
        """
        if receipt.get("format") != FORMAT:
            raise ReceiptError("this is no receipt of a format that is known here")
        key = self._keys.get(str(receipt.get("key")))
        if key is None:
            raise ReceiptError("it names a key that is none of the mesh's")
        try:
            key.verify(_from_base64url(str(receipt.get("signature", ""))), signed_bytes(receipt))
        except (InvalidSignature, binascii.Error, ValueError, TypeError):
            raise ReceiptError("its signature is not that of its content") from None
        if text is not None:
            digest = TextDigest()
            digest.update(text.encode(errors="surrogatepass"))
            if digest.hexdigest() != receipt.get("text_hash"):
                raise ReceiptError("it is the receipt of another text")


def fetch_keys(endpoint: str, tls: ssl.SSLContext | None = None) -> ReceiptKeys:
    """Ask a gateway, named by its WebSocket endpoint, for the keys. Blocks.

    Raises `OSError` when it cannot be asked, `ValueError` when it answers something else.
    """
    parts = urlsplit(endpoint)
    url = urlunsplit((_HTTP_OF_WS.get(parts.scheme, parts.scheme), parts.netloc, KEY_PATH, "", ""))
    with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S, context=tls) as reply:  # noqa: S310 - http(s), as above
        answer = json.loads(reply.read(ANSWER_BYTES_MAX))
    try:
        return ReceiptKeys(entry["public_key"] for entry in answer["data"])
    except (KeyError, TypeError):
        raise ValueError("the gateway's answer holds no keys") from None
