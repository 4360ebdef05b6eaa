"""What the openai engine must be told."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from inference.config import InferenceSettings


def test_the_url_and_the_engine_go_together() -> None:
    """One without the other is a mistake that is told at once."""
    with pytest.raises(ValidationError, match="upstream_url"):
        InferenceSettings(engine="openai")
    with pytest.raises(ValidationError, match="upstream_url"):
        InferenceSettings(engine="script", upstream_url="http://x/v1")


def test_the_key_comes_from_the_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings hold its name alone; a name that says nothing is told at once."""
    monkeypatch.setenv("A_KEY", "sk-123")
    wanted = {"engine": "openai", "upstream_url": "http://x/v1"}
    settings = InferenceSettings(**wanted, upstream_key_env="A_KEY")  # type: ignore[arg-type]
    assert settings.upstream_key == "sk-123"
    assert "sk-123" not in repr(settings)
    with pytest.raises(ValidationError, match="NO_SUCH"):
        InferenceSettings(**wanted, upstream_key_env="NO_SUCH")  # type: ignore[arg-type]


def test_its_batch_is_its_connections() -> None:
    """256 streams at once unless told otherwise."""
    wanted = {"engine": "openai", "upstream_url": "http://x/v1"}
    assert InferenceSettings(**wanted).limits().batch_max == 256  # type: ignore[arg-type]
    assert InferenceSettings(**wanted, batch_max=3).limits().batch_max == 3  # type: ignore[arg-type]
