"""`x-ratelimit-…`: how far a tenant is from its limits, in the headers that OpenAI's clients read.

What OpenAI says of a window is said of a bucket here: the limit is what it holds, and its state is reset
when it is full again.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.tenants.allowance import Limit
from gateway.tenants.bucket import Standing

__all__ = ["RATE_HEADERS", "duration", "rate_headers"]

_NAMES = {Limit.REQUESTS: "requests", Limit.TOKENS: "tokens"}
_SECOND_MS = 1000

RATE_HEADERS = {
    f"X-RateLimit-{what}-{name}": description
    for name in _NAMES.values()
    for what, description in (
        ("Limit", f"How many {name} may come at once. Without that limit: no header."),
        ("Remaining", f"How many {name} may come now."),
        ("Reset", "In what time all of them may, as in 1.5s or 6m0s."),
    )
}


def duration(milliseconds: int) -> str:
    """A time as OpenAI writes it: 20ms, 1.5s, 6m0s."""
    if 0 < milliseconds < _SECOND_MS:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60 * _SECOND_MS)
    return (f"{minutes}m" if minutes else "") + f"{rest / _SECOND_MS:g}s"


def rate_headers(standings: Mapping[Limit, Standing]) -> dict[str, str]:
    """The headers of those limits that there are."""
    headers = {}
    for limit, standing in standings.items():
        name = _NAMES[limit]
        headers[f"X-RateLimit-Limit-{name}"] = str(standing.burst)
        headers[f"X-RateLimit-Remaining-{name}"] = str(standing.room)
        headers[f"X-RateLimit-Reset-{name}"] = duration(standing.full_in_ms)
    return headers
