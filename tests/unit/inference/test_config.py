"""Settings of an instance."""

from __future__ import annotations

import pytest

from inference.config import InferenceSettings
from mesh.flags import settings_from_flags
from mesh.settings import EXIT_USAGE


def _settings(*flags: str) -> InferenceSettings:
    return settings_from_flags(InferenceSettings, "python -m inference", "test", flags)


def test_flags_become_limits() -> None:
    """What is said holds; what is not said is the engine's default."""
    settings = _settings("--batch-max", "8", "--queue-max", "3", "--aliases", "a, b,")
    assert settings.limits().batch_max == 8
    assert settings.limits().queue_max == 3
    assert settings.alias_names == ("a", "b")


def test_flags_that_other_servers_have() -> None:
    """The usual names of the bounds work too."""
    flags = ("--max-batch-size", "8", "--max-queue", "3", "--max-concurrent-requests", "20")
    limits = _settings(*flags).limits()
    assert (limits.batch_max, limits.queue_max, limits.concurrent_max) == (8, 3, 20)


def test_tenants_weights() -> None:
    """A list of `tenant=weight`."""
    assert _settings().limits().tenant_weights == {}
    limits = _settings("--tenant-weights", "gold=4, free=0.5").limits()
    assert limits.tenant_weights == {"gold": 4.0, "free": 0.5}


def test_a_script_engine_plays_all_that_is_due() -> None:
    """Its batch is not that of a model."""
    limits = _settings("--engine", "script").limits()
    assert limits.batch_max >= 4096
    assert limits.prefill_chunk_busy_max == limits.step_tokens_max


@pytest.mark.parametrize(
    "flags",
    [
        ("--engine", "magic"),
        ("--port", "70000"),
        ("--batch-max", "8", "--step-tokens-max", "4"),
        ("--attach-ttl-s", "20", "--transcript-ttl-s", "10"),
        ("--weight", "0"),
        ("--tenant-weights", "gold=4,free=0"),
        ("--tenant-weights", "gold"),
    ],
)
def test_a_fault_is_one_line_and_exit_code_2(
    flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Values and their relations are checked at start."""
    with pytest.raises(SystemExit) as caught:
        _settings(*flags)
    assert caught.value.code == EXIT_USAGE
    assert capsys.readouterr().err.count("\n") == 1
