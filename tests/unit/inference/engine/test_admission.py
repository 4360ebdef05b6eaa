"""What only the model knows about a request."""

from __future__ import annotations

import pytest

from inference.engine.admission import admit, check_model
from inference.engine.runner import Prepared
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.fake_runner import VOCAB, fake_info

INFO = fake_info(context_length=100, total_blocks=100, eos=frozenset({0}))


def _admit(
    prompt_tokens: int = 60, forced: tuple[int, ...] = (), **fields: object
) -> tuple[int, frozenset[int]]:
    request = GenerateRequest(prompt="x", **fields)  # type: ignore[arg-type]
    rules = admit(request, Prepared([1] * prompt_tokens, bytes), forced, INFO)
    return rules.max_tokens, rules.ending_ids


def _fault(**arguments: object) -> SeedanceError:
    with pytest.raises(SeedanceError) as caught:
        _admit(**arguments)  # type: ignore[arg-type]
    return caught.value


def test_max_tokens_defaults_to_what_the_context_leaves() -> None:
    """CASES 17: absent means context less prompt, and that much may also be asked."""
    assert _admit()[0] == 40
    assert _admit(max_tokens=40)[0] == 40
    assert _admit(max_tokens=1)[0] == 1


@pytest.mark.parametrize("wanted", [41, 2**31 - 1])
def test_max_tokens_beyond_the_context_names_the_range(wanted: int) -> None:
    """CASES 17: more than the context leaves is refused with the allowed range."""
    error = _fault(max_tokens=wanted)
    assert (error.code, error.field) == ("bad_request", "max_tokens")
    assert "1 to 40" in error.message


@pytest.mark.parametrize("prompt_tokens", [100, 101])
def test_a_prompt_that_fills_the_context_is_refused_with_both_numbers(prompt_tokens: int) -> None:
    """CASES 18: no room for a single token is `context_length_exceeded`."""
    error = _fault(prompt_tokens=prompt_tokens)
    assert error.code == "context_length_exceeded"
    assert str(prompt_tokens) in error.message
    assert "100" in error.message


def test_a_pool_smaller_than_the_context_is_the_bound() -> None:
    """What all blocks together cannot hold can never run."""
    small = fake_info(context_length=100, total_blocks=2, block_size=16)
    with pytest.raises(SeedanceError) as caught:
        admit(GenerateRequest(prompt="x"), Prepared([1] * 40, bytes), (), small)
    assert "40" in caught.value.message
    assert "32" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"sampling": Sampling(logit_bias={VOCAB: -100.0})}, f"logit_bias.{VOCAB}"),
        ({"stop_token_ids": (VOCAB,)}, f"stop_token_ids.{VOCAB}"),
        ({"forced": (VOCAB,)}, f"forced_prefix.{VOCAB}"),
        ({"forced": (1,) * 41}, "forced_prefix"),
        ({"min_tokens": 41}, "min_tokens"),
        ({"prompt_tokens": 0}, "prompt"),
    ],
)
def test_faults_name_their_field(fields: dict[str, object], path: str) -> None:
    """CASES 15: ids outside the vocabulary, and lengths outside the context, end here."""
    error = _fault(**fields)
    assert (error.code, error.field) == ("bad_request", path)


def test_ending_ids() -> None:
    """End-of-text ends unless ignored; stop ids always do."""
    assert _admit(stop_token_ids=(7,))[1] == {0, 7}
    assert _admit(stop_token_ids=(7,), ignore_eos=True)[1] == {7}


def test_model_names() -> None:
    """Its name, its aliases and no name are served; anything else is `model_not_found`."""
    check_model(GenerateRequest(model=""), INFO)
    check_model(GenerateRequest(model="fake"), INFO)
    with pytest.raises(SeedanceError) as caught:
        check_model(GenerateRequest(model="other"), INFO)
    assert caught.value.code == "model_not_found"
