"""The library tells what it can do, and refuses what it cannot."""

from __future__ import annotations

import pytest

from inference.native.library import Library, ModelShape, NativeModel
from tests.support.native_models import native_library

pytestmark = pytest.mark.skipif(native_library() is None, reason="no C++ compiler")


@pytest.fixture
def library() -> Library:
    """The library, built."""
    found = native_library()
    assert found is not None
    return found


def test_the_portable_path_is_always_there(library: Library) -> None:
    """Plain C++ runs everywhere, and comes last."""
    assert library.paths()[-1] == "portable"


def test_the_fastest_path_is_the_first(library: Library) -> None:
    """What is chosen without being told is the head of the list."""
    assert library.fastest_path == library.paths()[0]


def test_an_unknown_path_is_refused(library: Library) -> None:
    """A model on an instruction set that does not exist is an error, not a crash."""
    with pytest.raises(MemoryError):
        NativeModel(library, ModelShape(layers=1, hidden=32), "mmx", 1)


def test_more_memory_than_there_is_is_refused(library: Library) -> None:
    """A cache beyond the address space is an error, not a crash."""
    shape = ModelShape(
        layers=2**15, hidden=32, mlp=32, heads=1, kv_heads=2**10, head_dim=128, vocab=32,
        block_size=128, blocks=2**20, context=128,
    )  # fmt: skip
    with pytest.raises(MemoryError):
        NativeModel(library, shape, "portable", 1)


def test_closing_twice_is_harmless(library: Library) -> None:
    """The second close finds nothing to give back."""
    shape = ModelShape(
        layers=1, hidden=32, mlp=32, heads=1, kv_heads=1, head_dim=16, vocab=32,
        block_size=16, blocks=1, context=16,
    )  # fmt: skip
    model = NativeModel(library, shape, "portable", 2)
    model.close()
    model.close()
