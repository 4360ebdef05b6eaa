"""One shell configures all services, each of which refuses what it does not know."""

from __future__ import annotations

import pytest

from launcher.environment import environment_for
from mesh.settings import load_settings
from router.config import RouterSettings

SHELL = {
    "PATH": "/bin",
    "SEEDANCE_KEYS": "acme:00",
    "SEEDANCE_KV_BLOCKS": "8",
    "SEEDANCE_LEASE_MS": "500",
    "SEEDANCE_LOG_LEVEL": "info",
    "SEEDANCE_MESH_SECRET": "s3cret",
    "SEEDANCE_TYPO": "1",
}


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("gateway", {"SEEDANCE_KEYS", "SEEDANCE_LOG_LEVEL", "SEEDANCE_MESH_SECRET"}),
        ("inference", {"SEEDANCE_KV_BLOCKS", "SEEDANCE_LOG_LEVEL", "SEEDANCE_MESH_SECRET"}),
        ("router", {"SEEDANCE_LEASE_MS", "SEEDANCE_LOG_LEVEL", "SEEDANCE_MESH_SECRET"}),
        ("metering", {"SEEDANCE_LOG_LEVEL", "SEEDANCE_MESH_SECRET"}),
        ("store", set()),
    ],
)
def test_each_kind_gets_its_own(kind: str, own: set[str]) -> None:
    """What is for others is left out, secrets first of all; a typing error is passed on."""
    assert environment_for(kind, SHELL).keys() == own | {"PATH", "SEEDANCE_TYPO"}


def test_a_typing_error_is_found_at_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with the code for misuse; a variable of the command line's own is none."""
    monkeypatch.setenv("SEEDANCE_API_KEY", "k")
    monkeypatch.setenv("SEEDANCE_LEASE_MS", "500")
    assert load_settings(RouterSettings).lease_ms == 500
    monkeypatch.setenv("SEEDANCE_LEASE", "500")
    with pytest.raises(SystemExit) as ended:
        load_settings(RouterSettings)
    assert ended.value.code == 2
    assert "unknown environment variable SEEDANCE_LEASE;" in capsys.readouterr().err
