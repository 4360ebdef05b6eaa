"""The engine's own time beside the model's, where a machine is otherwise idle."""

from __future__ import annotations

import pytest

from inference.model.load import load_model
from launcher.bench.engine_share import engine_share
from tests.support.default_model import default_model_path
from tests.support.native_models import native_library

SHARE_MAX = 0.08


@pytest.mark.model
@pytest.mark.timeout(300)
@pytest.mark.skipif(native_library() is None, reason="no C++ compiler")
def test_the_engine_takes_at_most_a_twelfth_of_the_models_time() -> None:
    """16 streams of the default model on the native step: 8 % at most, in one run."""
    runner, preparer = load_model(default_model_path(), name="default")
    assert engine_share(runner, preparer, streams=16, tokens=120).share <= SHARE_MAX
