"""TLS on the client's side: TLS 1.3 alone, ALPN `http/1.1`, and a certificate that may change (§1)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from mesh.settings import exit_with

__all__ = ["Certificate", "open_certificate"]

LOOK_EVERY_S = 1.0

_log = logging.getLogger(__name__)


def _context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["http/1.1"])
    # An empty password: a key that wants one is an error, not a question on the terminal.
    context.load_cert_chain(certificate, key, password="")
    return context


class Certificate:
    """The certificate and key in two PEM files, read again when either file changes.

    `context` is the listener's for good. Each handshake is handed on to the context of the newest
    pair that could be read, so a pair is taken up as a whole or not at all, and connections that
    are open keep theirs. Raises `OSError` (`ssl.SSLError` is one) when there is no pair to begin
    with.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (Path(certificate), Path(key))
        # The stamps come first: a file that changes in between is read once more, not missed.
        self._stamps = self._look()
        self._newest = self.context = _context(*self._files)
        self.context.sni_callback = self._hand_on

    def _hand_on(
        self, tls: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        # Called for every handshake, also for a client that names no server.
        tls.context = self._newest

    def _look(self) -> list[tuple[int, int, int]]:
        found = [path.stat() for path in self._files]
        return [(status.st_mtime_ns, status.st_size, status.st_ino) for status in found]

    def refresh(self) -> bool:
        """Take up the files' new content; whether there was some. What cannot be read is logged."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return False
            self._stamps = stamps
            self._newest = _context(*self._files)
        except OSError as error:
            _log.warning(
                "the new certificate or key cannot be used (%s); the old ones stay", _reason(error)
            )
            return False
        _log.info("new connections are shown the new certificate")
        return True

    async def watch(self) -> None:
        """Look at the files again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.refresh()


def _reason(error: OSError) -> str:
    """What is wrong without a path."""
    named = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return named or "it is no PEM"


def open_certificate(certificate: str, key: str) -> Certificate | None:
    """The gateway's certificate, None where TLS is off; files that are wrong end the process."""
    if not certificate:
        return None
    try:
        return Certificate(certificate, key)
    except OSError as error:
        exit_with(f"--tls-cert and --tls-key cannot be used ({_reason(error)})")
