"""Who a service is to the others: its own certificate and key, and the authority that all of them trust.

With an identity every connection between services is mutual TLS: both ends show a certificate of
the mesh's authority, and whoever has none is refused in the handshake. Without one they speak
plainly, for one machine or a network that nobody else is on.
"""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from mesh.settings import ServiceSettings, exit_with

__all__ = ["MeshIdentity", "identity_of", "read_identity"]


@dataclass(frozen=True, slots=True)
class MeshIdentity:
    """Three PEM files' content; `name` is what every certificate of the mesh is made out to.

    With `name` empty a certificate must be made out to the host that was dialled.
    """

    certificate: bytes
    key: bytes = field(repr=False)
    authority: bytes
    name: str = ""

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """For a client."""
        return grpc.ssl_channel_credentials(self.authority, self.key, self.certificate)

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a server: a client without a certificate of the authority does not get in."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], self.authority, require_client_auth=True
        )


def read_identity(certificate: str, key: str, authority: str, name: str = "") -> MeshIdentity:
    """Read the files. Raises `OSError` (`ssl.SSLError` is one) when they are no pair, or no PEM."""
    check = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # An empty password: a key that wants one is an error, not a question on the terminal.
    check.load_cert_chain(certificate, key, password="")
    check.load_verify_locations(authority)
    return MeshIdentity(
        Path(certificate).read_bytes(), Path(key).read_bytes(), Path(authority).read_bytes(), name
    )


# A process keeps the identity that it began with: files that are being replaced while a channel is
# opened are no pair for a moment.
_kept = functools.cache(read_identity)


def identity_of(settings: ServiceSettings) -> MeshIdentity | None:
    """A service's identity by its settings, None for plain; files that are wrong end the process."""
    if not settings.mtls_cert:
        return None
    try:
        return _kept(settings.mtls_cert, settings.mtls_key, settings.mtls_ca, settings.mtls_name)
    except OSError as error:
        exit_with(f"--mtls-cert, --mtls-key and --mtls-ca are no identity: {error.strerror}")
