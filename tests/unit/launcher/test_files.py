"""Files that go together on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.files import files_of


def test_all_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All are taken in their order; a part of them is one line that names the flags."""
    cert, key = tmp_path / "a.pem", tmp_path / "a.key"
    for path in (cert, key):
        path.touch()
    assert files_of("tls", cert=cert, key=key) == (cert, key)
    assert files_of("tls", cert=None, key=None) == ()
    with pytest.raises(SystemExit):
        files_of("tls", cert=cert, key=None)
    assert capsys.readouterr().err == "seedance: --tls-cert and --tls-key go together\n"


def test_a_file_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is started."""
    with pytest.raises(SystemExit):
        files_of("tls", cert=tmp_path / "no.pem", key=tmp_path / "no.key")
    assert "no.pem is no file" in capsys.readouterr().err
