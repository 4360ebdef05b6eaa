"""What each process of a local mesh finds in its environment.

A service refuses a `SEEDANCE_…` variable that it does not know, so that a typing error is found at
start. One shell configures all services, however: each is given its own variables, and those that
nobody knows, to be refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import GatewaySettings
from inference.config import InferenceSettings
from mesh.settings import ENV_PREFIX, ServiceSettings
from metering.config import MeteringSettings
from router.config import RouterSettings

__all__ = ["environment_for"]

_SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "inference": InferenceSettings,
    "metering": MeteringSettings,
    "router": RouterSettings,
}


def _names(settings: type[ServiceSettings]) -> frozenset[str]:
    return frozenset(ENV_PREFIX + name.upper() for name in settings.model_fields)


def environment_for(kind: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without what is meant for services of another kind; the store is none of ours."""
    own = _names(_SETTINGS[kind]) if kind in _SETTINGS else frozenset[str]()
    others = frozenset[str]().union(*map(_names, _SETTINGS.values())) - own
    return {name: value for name, value in environ.items() if name not in others}
