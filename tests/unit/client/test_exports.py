"""What `import seedance` offers."""

from __future__ import annotations

import pytest

import seedance
import seedance.client


def test_the_surface_is_what_it_says() -> None:
    """Every name of `__all__` is there, at the top and in the SDK."""
    for module in (seedance, seedance.client):
        assert module.__all__
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_a_wrong_name_is_an_attribute_error() -> None:
    """A name that is not there is told as any module tells it."""
    with pytest.raises(AttributeError, match="no attribute 'SeedanceClint'"):
        seedance.SeedanceClint  # noqa: B018
