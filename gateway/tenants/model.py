"""What a tenants file means once it was read: plain values, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gateway.budgets.model import Budget

__all__ = ["NO_TENANTS", "ApiKey", "Limits", "PriorityClass", "Rate", "Tenant", "TenantBook"]


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A tenant's key, known by its SHA-256 (32 bytes); `name` is what people call it."""

    tenant: str
    digest: bytes
    name: str = ""

    @property
    def label(self) -> str:
        """What stands for the key where it is counted or shown: its name, or how its hash begins."""
        return self.name or self.digest.hex()[:12]


class PriorityClass(Enum):
    """Who goes first when requests wait; within a class tenants share by weight."""

    REALTIME = "realtime"
    STANDARD = "standard"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many units per second, `burst` of them at once.

    The mesh's load moves `base` between `floor` and `ceiling`; as these are `base` unless given, a
    rate stands still unless they are.
    """

    base: float
    burst: float
    floor: float
    ceiling: float


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may have in the whole mesh; None: any amount.

    `requests` are generations asked for, `tokens` those made for it, `bytes` the text of both, all
    per second; `connections` are WebSockets and `streams` generations, at once.
    """

    requests: Rate | None = None
    tokens: Rate | None = None
    bytes: Rate | None = None
    connections: int | None = None
    streams: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `models` and `origins` empty: all that the mesh serves, all that it lets in.

    `origins` are as `gateway.auth` spells them; a tenant that has some comes from nowhere else.
    `budgets` are its own and those of its keys.
    """

    name: str
    models: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    priority: PriorityClass = PriorityClass.STANDARD
    weight: float = 1.0
    limits: Limits = field(default_factory=Limits)
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class TenantBook:
    """All tenants of a file, and their keys."""

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    keys: tuple[ApiKey, ...] = ()

    def tenant(self, name: str) -> Tenant:
        """The tenant; one that the file does not name has no limits of its own."""
        return self.tenants.get(name) or Tenant(name)


NO_TENANTS = TenantBook()
