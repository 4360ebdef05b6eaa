"""What a caller may ask for (contract §3)."""

from __future__ import annotations

import math

import pytest

from seedance.client.options import ChatOptions, endpoint, generate_frame
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import ChatMessage


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://localhost:8080/v1/chat", "ws://localhost:8080/v1/chat"),
        ("ws://localhost:8080", "ws://localhost:8080/v2/infer"),
        ("http://localhost:8080/", "ws://localhost:8080/v2/infer"),
        ("https://h/v2/infer?mode=token#x", "wss://h/v2/infer?mode=token"),
    ],
)
def test_an_endpoint_may_be_short(url: str, expected: str) -> None:
    """Host and port are enough: scheme and path follow."""
    assert endpoint(url) == expected


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://h", "ws://", ""])
def test_a_wrong_url_is_said_at_once(url: str) -> None:
    """What is no WebSocket URL is refused before anything is dialled."""
    with pytest.raises(ValueError, match="not a ws://"):
        endpoint(url)


def test_options_become_the_request() -> None:
    """Options arrive under the contract's names; None is left to the server."""
    frame = generate_frame(
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        None,
        ChatOptions(temperature=0.3, seed=None, stop=("a", "b"), logit_bias={7: -1.5}),
        stream=False,
    )
    request = frame.request
    assert request.messages == (ChatMessage("user", "hi"),)
    assert request.sampling.temperature == 0.3
    assert request.sampling.seed is None
    assert request.sampling.logit_bias == {7: -1.5}
    assert request.stop == ("a", "b")
    assert (frame.stream, frame.bare) == (False, False)
    assert frame.id


def test_every_generation_has_an_id_of_its_own() -> None:
    """Two requests never share an id, so that neither is taken for the other's repetition."""
    one, two = (generate_frame(None, "x", ChatOptions(), stream=True) for _ in range(2))
    assert one.id != two.id


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (ChatOptions(temperature=math.nan), "temperature"),
        (ChatOptions(max_tokens=0), "max_tokens"),
        (ChatOptions(stop="\ud83d"), "stop"),
        (ChatOptions(logit_bias={-1: 1.0}), "logit_bias"),
        (ChatOptions(max_tokens=True), "max_tokens"),
    ],
)
def test_a_bad_value_is_refused_before_it_travels(options: ChatOptions, field: str) -> None:
    """CASES 13, 17, 20: the client refuses what the server would, by the field's name."""
    with pytest.raises(SeedanceError) as caught:
        generate_frame(None, "x", options, stream=True)
    assert caught.value.field == field


def test_a_mistyped_option_is_a_type_error() -> None:
    """A misspelt option is not silently ignored."""
    with pytest.raises(TypeError, match="temprature"):
        generate_frame(None, "x", {"temprature": 1.0}, stream=True)  # type: ignore[typeddict-unknown-key]
