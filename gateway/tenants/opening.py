"""From settings to the tenants' desk and to who may connect."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from gateway.auth import Authenticator, VerifyToken, allowed_origins, parse_keys
from gateway.config import GatewaySettings
from gateway.signed_tokens import JWKS_BYTES_MAX, JwtRules, KeySet, read_jwks, verify
from gateway.store.base import SessionStore
from gateway.store.leases import RedisLeases
from gateway.tenants.desk import Tenants
from gateway.tenants.model import TenantBook
from gateway.tenants.reader import TENANTS_BYTES_MAX, read_tenants
from gateway.tickets import Principal, Tickets
from mesh.clock import Clock
from mesh.watched_file import WatchedFile

__all__ = ["open_authenticator", "open_tenants"]

_log = logging.getLogger("gateway.tenants")


def open_tenants(settings: GatewaySettings, clock: Clock) -> Tenants:
    """The desk over the tenants file and the store. Raises `DocumentError` for a bad file."""
    file: WatchedFile[TenantBook] | None = None
    if settings.tenants_file:
        path = Path(settings.tenants_file)
        file = WatchedFile(path, read_tenants, TENANTS_BYTES_MAX, _log, "tenants file")
    keys: WatchedFile[KeySet] | None = None
    if settings.jwks_file:
        path = Path(settings.jwks_file)
        keys = WatchedFile(path, read_jwks, JWKS_BYTES_MAX, _log, "JWKS file")
    # A gateway that is started again is another one to the store: what it had has been forgotten.
    name = f"{settings.server_name}:{secrets.token_hex(4)}"
    leases = RedisLeases(settings.redis, name) if settings.redis and file is not None else None
    processes = len(settings.gateway_urls) * settings.workers
    return Tenants(file, clock, leases, gateways=processes, jwks=keys)


def open_authenticator(
    settings: GatewaySettings, store: SessionStore, tenants: Tenants, clock: Clock
) -> Authenticator:
    """Who may connect. Raises `ValueError` for a setting that means nothing."""
    return Authenticator(
        parse_keys(settings.keys.get_secret_value()),
        allowed_origins(settings.gateway_urls, settings.origins),
        Tickets(store, settings.ticket_ttl_s),
        anonymous_tenant=settings.anonymous_tenant or None,
        book=lambda: tenants.book,
        verify=_verifier(settings, tenants, clock),
    )


def _verifier(settings: GatewaySettings, tenants: Tenants, clock: Clock) -> VerifyToken:
    rules = JwtRules(settings.jwt_tenant_claim, settings.jwt_audience, settings.jwt_issuer)
    known = {key.tenant for key in parse_keys(settings.keys.get_secret_value())}

    def whose(token: str) -> Principal | None:
        keys = tenants.jwks
        if keys is None:
            return None
        book = tenants.book.tenants
        return verify(
            token, keys, rules, clock.wall_ms(), lambda name: name in book or name in known
        )

    return whose
