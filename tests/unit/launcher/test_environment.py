"""What the processes of a local mesh are told by environment."""

from __future__ import annotations

from launcher.environment import mesh_environment, part_of, unknown_to_all


def test_each_service_gets_only_what_it_knows() -> None:
    """Keys go to gateways, the secret to every service, the rest of the shell to all."""
    whole = mesh_environment(
        {"PATH": "/bin", "SEEDANCE_REDIS": "redis://x", "SEEDANCE_KEYS": "a:b"}
    )
    assert "SEEDANCE_KEYS" in part_of("gateway", whole)
    for kind in ("router", "inference", "metering"):
        assert "SEEDANCE_KEYS" not in part_of(kind, whole)
        assert part_of(kind, whole)["SEEDANCE_MESH_SECRET"]
    assert part_of("store", whole) == {"PATH": "/bin"}


def test_the_secret_is_new_at_every_start() -> None:
    """Two meshes do not believe each other."""
    first, second = (mesh_environment({})["SEEDANCE_MESH_SECRET"] for _ in range(2))
    assert first != second


def test_what_the_user_says_wins() -> None:
    """Keys and secret of the shell are kept."""
    own = {"SEEDANCE_KEYS": "a:b", "SEEDANCE_MESH_SECRET": "s"}
    assert mesh_environment(own) == own


def test_a_variable_that_nobody_knows_is_found() -> None:
    """A typing error is named; variables of any service are not."""
    environ = {"SEEDANCE_TYPO": "1", "SEEDANCE_KEYS": "", "SEEDANCE_ENGINE": "script", "HOME": "/"}
    assert unknown_to_all(environ) == ["SEEDANCE_TYPO"]
