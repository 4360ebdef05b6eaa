"""`seedance chat`: what it says when it cannot talk."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.chat import remedy, run_chat
from seedance.protocol.errors import ErrorCode, SeedanceError

HERE = "ws://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "ca_cert", "said"),
    [("foo", None, "--url foo: write ws://"), (HERE, __file__, "it is no PEM file")],
)
def test_what_cannot_be_used_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], url: str, ca_cert: str | None, said: str
) -> None:
    """An address or a certificate that is none ends with one line and exit code 2."""
    authorities = None if ca_cert is None else Path(ca_cert)
    with pytest.raises(SystemExit) as ended:
        run_chat(url, model=None, api_key=None, temperature=0, question="?", ca_cert=authorities)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1


def test_an_error_says_what_to_do() -> None:
    """Nobody there, an authority that is not known, a key that is missing: each has its remedy."""
    away = SeedanceError(ErrorCode.UNAVAILABLE, "away")
    assert HERE in remedy(away, HERE)
    assert "is the mesh up" in remedy(away, HERE)
    assert "--ca-cert" in remedy(away, "wss://127.0.0.1:1")
    assert "--api-key" in remedy(SeedanceError(ErrorCode.UNAUTHORIZED, "no"), HERE)
    assert not remedy(SeedanceError(ErrorCode.BAD_REQUEST, "no"), HERE)
