"""The gateway's certificate: TLS 1.3 alone, and files that change under it."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest

from gateway.tls import Certificate, open_certificate
from tests.support.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def _shake(
    certificate: Certificate, client: ssl.SSLContext
) -> tuple[ssl.SSLObject, bytes | None, str | None]:
    """A handshake in memory: the client's end, the certificate it saw (DER) and the protocol chosen."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (one, other):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return one, one.getpeercert(binary_form=True), one.selected_alpn_protocol()


def _client(authority: Authority) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


def _der(pair: Pair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(pair.certificate).read_text())


def _put(source: Pair, target: Pair) -> None:
    shutil.copyfile(source.certificate, target.certificate)
    shutil.copyfile(source.key, target.key)


def test_it_is_tls_1_3_and_http_1_1(authority: Authority) -> None:
    """A client that offers HTTP/2 first is told HTTP/1.1; one that knows only TLS 1.2 is refused."""
    certificate = Certificate(*_files(authority.issue("first")))
    end, _, chosen = _shake(certificate, _client(authority))
    assert (end.version(), chosen) == ("TLSv1.3", "http/1.1")
    old = _client(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _shake(certificate, old)


def _files(pair: Pair) -> tuple[str, str]:
    return pair.certificate, pair.key


def test_a_new_pair_is_shown_to_new_connections(authority: Authority) -> None:
    """With the files replaced, the next handshake has the new certificate."""
    live, second = authority.issue("live"), authority.issue("second")
    certificate = Certificate(*_files(live))
    assert not certificate.refresh()
    _put(second, live)
    assert certificate.refresh()
    assert _shake(certificate, _client(authority))[1] == _der(second)


def test_a_bad_pair_keeps_the_old_one(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """A pair that does not fit, or is gone, changes nothing but a line in the log; a good one later counts."""
    live, second = authority.issue("live"), authority.issue("second")
    first = _der(live)
    certificate = Certificate(*_files(live))
    shutil.copyfile(second.certificate, live.certificate)  # its key is still to come
    with caplog.at_level(logging.WARNING):
        assert not certificate.refresh()
    assert "the old ones stay" in caplog.text
    assert str(live.key) not in caplog.text
    assert _shake(certificate, _client(authority))[1] == first
    Path(live.key).unlink()
    assert not certificate.refresh()
    assert _shake(certificate, _client(authority))[1] == first
    _put(second, live)
    assert certificate.refresh()
    assert _shake(certificate, _client(authority))[1] == _der(second)


def test_without_files_there_is_no_tls_and_wrong_ones_end_the_start(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the flags and no path, exit code 2."""
    assert open_certificate("", "") is None
    with pytest.raises(SystemExit) as ended:
        open_certificate(authority.issue("a").certificate, authority.issue("b").key)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("seedance: --tls-cert and --tls-key cannot be used (")
    assert said.count("\n") == 1
