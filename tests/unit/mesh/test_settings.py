"""Settings that would let strangers in are refused at start."""

from __future__ import annotations

import pytest
from pydantic import SecretStr, ValidationError

from metering.config import MeteringSettings
from router.config import RouterSettings


@pytest.mark.parametrize("settings", [RouterSettings, MeteringSettings])
def test_a_service_that_believes_everybody_stays_on_loopback(
    settings: type[RouterSettings | MeteringSettings],
) -> None:
    """Without the mesh's secret and without mutual TLS it listens to this machine alone."""
    with pytest.raises(ValidationError, match="set SEEDANCE_MESH_SECRET or --mtls-cert"):
        settings(host="0.0.0.0")
    settings(host="0.0.0.0", mesh_secret=SecretStr("s"))
    settings(host="0.0.0.0", mtls_cert="c", mtls_key="k", mtls_ca="a")
    settings(host="::1")
