"""A session's id: random, and at its end when it was made by the store's clock.

To clients it is opaque. Gateways read the time to tell a session that is gone from one whose first
commit is still on its way (§4.8). Nobody gains by making one up: what counts is the resume token.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets

__all__ = ["SESSION_ID", "made_ms", "new_session_id"]

# An id as gateways make it; a client that names another one names no session.
SESSION_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_RANDOM_BYTES = 16
_TIME_BYTES, _TIME_CHARS = 6, 8
_ID_CHARS = 22 + _TIME_CHARS


def new_session_id(now_ms: int) -> str:
    """An id for a session that is made now, in Unix milliseconds of the store's clock."""
    made = base64.urlsafe_b64encode(now_ms.to_bytes(_TIME_BYTES, "big"))
    return secrets.token_urlsafe(_RANDOM_BYTES) + made.decode()


def made_ms(session: str) -> int | None:
    """When a session with this id was made; None: no gateway makes such ids."""
    if len(session) != _ID_CHARS:
        return None
    try:
        made = base64.b64decode(session[-_TIME_CHARS:].encode(), b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        return None
    return int.from_bytes(made, "big")
