"""A service's command line."""

from __future__ import annotations

import pytest

from mesh.flags import settings_from_flags
from router.config import RouterSettings


def _parse(*argv: str) -> RouterSettings:
    return settings_from_flags(RouterSettings, "router", "…", argv)


def test_flag_over_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flag wins over the environment, which wins over the default."""
    assert _parse().port == 7070
    monkeypatch.setenv("SEEDANCE_PORT", "1")
    assert _parse().port == 1
    assert _parse("--port", "2").port == 2
    assert _parse("--die-with-parent").die_with_parent
    assert not _parse().die_with_parent


def test_secrets_have_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """CASES 108: a secret cannot be given where the process list shows it."""
    with pytest.raises(SystemExit):
        _parse("--mesh-secret", "s3")
    assert "unrecognized" in capsys.readouterr().err


def test_an_unknown_flag_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """It is named, without the list of all the others before it."""
    with pytest.raises(SystemExit) as ended:
        _parse("--lease", "5")
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "--lease 5" in message
    assert message.count("\n") == 1


def test_bad_value_is_one_line_and_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A value out of range names its setting and ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        _parse("--lease-ms", "5")
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert "LEASE_MS" in message
    assert message.count("\n") == 1
