"""`gateway.receipts`: key files, and receipts that `seedance.receipt` accepts or refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gateway.receipts import KeyFileError, ReceiptSigner, load_signer, make_key_file
from seedance.protocol.frames import Usage
from seedance.protocol.receipt import TextDigest
from seedance.receipt import ReceiptError, ReceiptKeys

VECTORS = Path(__file__).resolve().parents[2] / "vectors"
TEXT = "Grüße, 世界. " * 60


def _signer(tmp_path: Path) -> ReceiptSigner:
    path = tmp_path / "key.pem"
    make_key_file(path)
    signer = load_signer([str(path)])
    assert signer is not None
    return signer


def _sign(signer: ReceiptSigner, text: str = TEXT) -> dict[str, Any]:
    digest = TextDigest()
    digest.update(text.encode())
    return signer.of_session("S")("q", digest, Usage(7, 2, 40))


def _keys(signer: ReceiptSigner) -> ReceiptKeys:
    return ReceiptKeys(entry["public_key"] for entry in signer.public_keys)


def test_a_receipt_holds_for_its_text(tmp_path: Path) -> None:
    """Offline, with the public key alone; and two signatures of one stream are the same bytes."""
    signer = _signer(tmp_path)
    again = load_signer([str(tmp_path / "key.pem")])
    assert again is not None
    assert _sign(signer) == _sign(again)
    _keys(signer).check(_sign(signer), text=TEXT)
    assert _sign(signer)["usage"]["total_tokens"] == 47


@pytest.mark.parametrize(
    "change",
    [
        {"id": "other"},
        {"session": "other"},
        {"text_hash": "00" * 32},
        {"usage": {"prompt_tokens": 7, "cached_tokens": 2, "completion_tokens": 39}},
        {"format": 2},
        {"key": "0000000000000000"},
        {"signature": "AAAA"},
        {"signature": "not base64 \ud83d"},
        {"signature": None},
        {"more": "\ud83d"},
        {"more": {"NaN": float("nan")}},
    ],
    ids=str,
)
def test_whatever_is_changed_is_noticed(tmp_path: Path, change: dict[str, Any]) -> None:
    """Id, session, text, usage, key or signature: nothing can be exchanged, and nothing but `ReceiptError` comes."""
    signer = _signer(tmp_path)
    with pytest.raises(ReceiptError):
        _keys(signer).check(_sign(signer) | change, text=TEXT)


def test_another_text_is_noticed(tmp_path: Path) -> None:
    """A receipt is of one text: one letter more is another."""
    signer = _signer(tmp_path)
    with pytest.raises(ReceiptError, match="another text"):
        _keys(signer).check(_sign(signer), text=TEXT + "!")


def test_a_retired_key_still_checks(tmp_path: Path) -> None:
    """Rotation: the new key signs, receipts of the older one hold as long as it is listed, even as public key alone."""
    old = _signer(tmp_path)
    receipt = _sign(old)
    (tmp_path / "key.pem").rename(tmp_path / "old.pem")
    subprocess.run(
        ["openssl", "pkey", "-in", "old.pem", "-pubout", "-out", "old.pub"],
        cwd=tmp_path,
        check=True,
    )
    make_key_file(tmp_path / "key.pem")
    new = load_signer([str(tmp_path / "key.pem"), str(tmp_path / "old.pub")])
    assert new is not None
    assert _sign(new)["key"] != receipt["key"]
    for each in (receipt, _sign(new)):
        _keys(new).check(each, text=TEXT)


def test_a_key_file_is_made_once_and_private(tmp_path: Path) -> None:
    """A second start keeps the key, and nobody but its owner can read it."""
    path = tmp_path / "key.pem"
    make_key_file(path)
    first = path.read_bytes()
    make_key_file(path)
    assert path.read_bytes() == first
    assert path.stat().st_mode & 0o077 == 0


def test_a_bad_key_file_is_refused(tmp_path: Path) -> None:
    """Missing, no key, no private key first: a line that names the file, and none of its content."""
    (tmp_path / "junk").write_text(
        "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"
    )
    public = Ed25519PrivateKey.generate().public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public").write_bytes(pem)
    for name in ("missing", "junk", "public"):
        with pytest.raises(KeyFileError, match=name) as refusal:
            load_signer([str(tmp_path / name)])
        assert "c2VjcmV0" not in str(refusal.value)
    assert load_signer([]) is None


def test_the_vector_is_what_is_signed() -> None:
    """The receipt that the web SDK's test checks, byte for byte out of the same key (`tests/vectors`)."""
    vector = json.loads((VECTORS / "receipt.json").read_text())
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["private_key"]))
    digest = TextDigest()
    digest.update(vector["text"].encode())
    receipt = vector["receipt"]
    signed = ReceiptSigner(key).of_session(receipt["session"])(
        receipt["id"], digest, Usage(7, 2, 40)
    )
    assert signed == receipt
    ReceiptKeys([vector["public_key"]]).check(receipt, text=vector["text"])
