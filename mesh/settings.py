"""One frozen settings class per service: read once, checked together, never read again.

A service derives its class from `ServiceSettings` and documents every field. Values come from the
environment as `SEEDANCE_<FIELD>`; a `SEEDANCE_…` variable that it does not know is refused, so that
a typing error is found at start and not in production.
"""

from __future__ import annotations

import os
import sys
from typing import Literal, NoReturn, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = [
    "ENV_PREFIX",
    "InnerSettings",
    "LogLevel",
    "ServiceSettings",
    "exit_with",
    "load_settings",
    "unknown_variables",
]

ENV_PREFIX = "SEEDANCE_"
EXIT_USAGE = 2
LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Variables that are read by something else than a service's settings class.
FOREIGN_VARIABLES = frozenset(
    {"SEEDANCE_API_KEY", "SEEDANCE_CACHE", "SEEDANCE_TEST_POSTGRES", "SEEDANCE_TEST_REDIS"}
)

LogLevel = Literal["debug", "info", "warning", "error"]

S = TypeVar("S", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """What every service can be told."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="Address to listen on.")
    log_level: LogLevel = Field(
        "warning", description="Lowest level logged: debug, info, warning or error."
    )
    log_json: bool = Field(False, description="Log one JSON object per line instead of text.")
    otlp_endpoint: str = Field(
        "",
        description="gRPC endpoint of an OpenTelemetry collector; empty: traces are not exported.",
    )
    trace_ratio: float = Field(
        1.0, ge=0, le=1, description="Share of traces sampled when the caller did not decide."
    )
    mesh_secret: SecretStr = Field(
        SecretStr(""),
        description="Shown by mesh members to each other; empty: no caller is believed by an instance, every one by router and metering.",
    )
    mtls_cert: str = Field(
        "",
        description="This service's certificate towards the others, a PEM file; empty: no TLS between services.",
    )
    mtls_key: str = Field("", description="The key of `mtls_cert`, a PEM file.")
    mtls_ca: str = Field(
        "", description="The authority that signs every service's certificate, a PEM file."
    )
    mtls_name: str = Field(
        "",
        description="Name that every service's certificate is made out to; empty: the host that is dialled.",
    )
    drain_grace_s: float = Field(
        20.0, ge=0, le=600, description="Longest time between SIGTERM and the end, in seconds."
    )
    die_with_parent: bool = Field(
        False, description="End when the process that started this one ends (Linux)."
    )
    announce: bool = Field(
        False, description="Print one line `ready HOST:PORT` on stdout once requests are taken."
    )

    @model_validator(mode="after")
    def _mtls_is_whole(self) -> Self:
        given = [bool(path) for path in (self.mtls_cert, self.mtls_key, self.mtls_ca)]
        if any(given) and not all(given):
            raise ValueError("mtls_cert, mtls_key and mtls_ca go together")
        return self


class InnerSettings(ServiceSettings):
    """What a service can be told that answers the mesh alone, and all of it alike."""

    @model_validator(mode="after")
    def _strangers_stay_out(self) -> Self:
        alone = self.host in LOOPBACK
        if not (alone or self.mtls_cert or self.mesh_secret.get_secret_value()):
            raise ValueError(
                "beyond loopback anybody could give orders:"
                " set SEEDANCE_MESH_SECRET or --mtls-cert, or bind --host 127.0.0.1"
            )
        return self


def _subclasses(cls: type[ServiceSettings]) -> list[type[ServiceSettings]]:
    found = [cls]
    for sub in cls.__subclasses__():
        found += _subclasses(sub)
    return found


def unknown_variables(
    environ: dict[str, str], known_elsewhere: frozenset[str] = frozenset()
) -> list[str]:
    """`SEEDANCE_…` names in `environ` that neither a loaded settings class nor the list knows."""
    known = {
        ENV_PREFIX + name.upper()
        for cls in _subclasses(ServiceSettings)
        for name in cls.model_fields
    }
    known |= known_elsewhere | FOREIGN_VARIABLES
    return sorted(k for k in environ if k.startswith(ENV_PREFIX) and k not in known)


def exit_with(message: str) -> NoReturn:
    """Say in one line what is wrong and what to do, and end with the code for misuse."""
    sys.stderr.write(f"seedance: {message}\n")
    raise SystemExit(EXIT_USAGE)


def load_settings(cls: type[S], **overrides: object) -> S:
    """Read the settings from environment and overrides (flags); ends the process with one line per fault.

    Overrides that are None were not given and do not count.
    """
    unknown = unknown_variables(dict(os.environ))
    if unknown:
        exit_with(f"unknown environment variable {unknown[0]}; `--help` lists the known ones")
    try:
        return cls(**{k: v for k, v in overrides.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        message = fault["msg"].removeprefix("Value error, ")
        exit_with(f"{ENV_PREFIX}{where.upper()}: {message}" if where else message)
