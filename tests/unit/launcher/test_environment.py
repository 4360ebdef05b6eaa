"""What the processes of a local mesh are told by environment."""

from __future__ import annotations

from pathlib import Path

from launcher.blueprint import UpOptions, build
from launcher.environment import (
    keep_mesh_secret,
    mesh_environment,
    mesh_secret,
    overruled,
    part_of,
    unknown_to_all,
)
from launcher.ports import free_port


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
    """What the shell says is kept: also that nobody comes in without a key."""
    own = {
        "SEEDANCE_KEYS": "a:b",
        "SEEDANCE_MESH_SECRET": "s",
        "SEEDANCE_ANONYMOUS_TENANT": "",
        "SEEDANCE_DRAIN_GRACE_S": "2",
    }
    assert mesh_environment(own) == own


def test_what_no_process_would_hear_is_named(tmp_path: Path) -> None:
    """A store that `seedance up` would not use is not taken in silence; what services hear is fine."""
    specs = build(UpOptions(tmp_path, free_port(), engine="script", tls=(Path("c"), Path("k"))))
    heard = {"SEEDANCE_PLANS": "p", "SEEDANCE_TLS_CERT": "c", "SEEDANCE_DRAIN_GRACE_S": "2"}
    assert overruled(heard, specs) == []
    unheard = {"SEEDANCE_REDIS": "redis://x", "SEEDANCE_LOG_LEVEL": "info"}
    assert overruled({**heard, **unheard}, specs) == sorted(unheard)


def test_a_variable_that_nobody_knows_is_found() -> None:
    """A typing error is named; variables of any service are not."""
    environ = {"SEEDANCE_TYPO": "1", "SEEDANCE_KEYS": "", "SEEDANCE_ENGINE": "script", "HOME": "/"}
    assert unknown_to_all(environ) == ["SEEDANCE_TYPO"]


def test_commands_find_the_secret_of_the_mesh(tmp_path: Path) -> None:
    """It lies where only its owner reads it, the newest one; the shell's own comes first."""
    assert not mesh_secret({}, tmp_path)
    for _ in range(2):
        environ = mesh_environment({})
        keep_mesh_secret(environ, tmp_path)
        assert mesh_secret({}, tmp_path) == environ["SEEDANCE_MESH_SECRET"]
    (kept,) = tmp_path.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert mesh_secret({"SEEDANCE_MESH_SECRET": "s"}, tmp_path) == "s"
