"""The identity of a service: three files that must fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from mesh.rpc.identity import identity_of, read_identity
from mesh.settings import ServiceSettings
from tests.support.certificates import Authority


def test_without_files_a_service_speaks_plainly() -> None:
    """The default is for one machine."""
    assert identity_of(ServiceSettings()) is None


@pytest.mark.parametrize("given", [("cert",), ("cert", "key"), ("ca",)])
def test_half_an_identity_is_refused(given: tuple[str, ...]) -> None:
    """Whoever forgets a file does not end up without TLS."""
    with pytest.raises(ValidationError, match="go together"):
        ServiceSettings(**{f"mtls_{part}": "x.pem" for part in given})


def test_a_key_is_not_shown(tmp_path: Path) -> None:
    """Neither the settings nor the identity show a key when they are printed."""
    authority = Authority(tmp_path)
    pair = authority.issue("service")
    identity = read_identity(pair.certificate, pair.key, authority.file)
    assert "PRIVATE KEY" in identity.key.decode()
    assert "PRIVATE KEY" not in repr(identity)


def test_files_that_do_not_fit_end_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another certificate's key is found at start, in one line, and not at the first call."""
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    settings = ServiceSettings(
        mtls_cert=one.certificate, mtls_key=other.key, mtls_ca=authority.file
    )
    with pytest.raises(SystemExit) as ended:
        identity_of(settings)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_files_that_are_replaced_change_nothing_for_who_runs(tmp_path: Path) -> None:
    """A question to another service while certificates are renewed does not end the one that asks."""
    authority = Authority(tmp_path)
    pair = authority.issue("service")
    settings = ServiceSettings(
        mtls_cert=pair.certificate, mtls_key=pair.key, mtls_ca=authority.file
    )
    begun = identity_of(settings)
    Path(pair.key).write_text("half of a ne")
    assert identity_of(settings) is begun
