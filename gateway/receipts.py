"""The mesh's key for receipts, and the receipts it signs (contract, §3).

Ed25519 is deterministic, and every gateway of a mesh has the same key: whoever ends a stream, and however
often, the receipt's bytes are the same.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from seedance.protocol.frames import Usage
from seedance.protocol.receipt import SignReceipt, TextDigest, receipt_body, signed_bytes
from seedance.receipt import key_id, to_base64url

__all__ = ["KeyFileError", "ReceiptSigner", "load_signer", "make_key_file"]


class KeyFileError(ValueError):
    """A key file cannot be used; the message names it and what to do, and shows nothing of it."""


class ReceiptSigner:
    """Signs with `key`; `older` are public keys that receipts may still be checked with."""

    def __init__(self, key: Ed25519PrivateKey, older: Sequence[Ed25519PublicKey] = ()) -> None:
        self._key = key
        raw = [_raw(public) for public in (key.public_key(), *older)]
        self._id = key_id(raw[0])
        self.public_keys = [
            {"id": key_id(public), "algorithm": "Ed25519", "public_key": to_base64url(public)}
            for public in raw
        ]

    def of_session(self, session: str) -> SignReceipt:
        """What a session's streams are given to sign with."""

        def sign(stream: str, text: TextDigest, usage: Usage) -> dict[str, Any]:
            receipt = receipt_body(session, stream, text, usage, self._id)
            return receipt | {"signature": to_base64url(self._key.sign(signed_bytes(receipt)))}

        return sign


def _raw(key: Ed25519PublicKey) -> bytes:
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def make_key_file(path: Path) -> None:
    """Make a new key, readable by its owner alone, unless the file is there already."""
    pem = Ed25519PrivateKey.generate().private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)


def load_signer(paths: Sequence[str]) -> ReceiptSigner | None:
    """The first file's private key signs; the others, private or public, are older ones.

    None: no file is named. Raises `KeyFileError`.
    """
    if not paths:
        return None
    first, *older = (_load(path) for path in paths)
    if not isinstance(first, Ed25519PrivateKey):
        raise KeyFileError(f"{paths[0]} has no private key: the first file must, it signs")
    publics = [key.public_key() if isinstance(key, Ed25519PrivateKey) else key for key in older]
    return ReceiptSigner(first, publics)


def _load(path: str) -> Ed25519PrivateKey | Ed25519PublicKey:
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise KeyFileError(f"cannot read {path}: {error.strerror}") from None
    try:
        key = load_pem_private_key(pem, None) if b"PRIVATE KEY" in pem else load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey | Ed25519PublicKey):
        raise KeyFileError(
            f"{path} is no Ed25519 key without a passphrase: "
            "make one with `openssl genpkey -algorithm ed25519`"
        )
    return key
