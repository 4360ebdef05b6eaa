"""Stop strings."""

from __future__ import annotations

import pytest

from inference.engine.stop import StopMatcher


def _run(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    out = []
    for piece in pieces:
        text, met = matcher.push(piece)
        out.append(text)
        if met:
            return out, True
    out.append(matcher.flush())
    return out, False


@pytest.mark.parametrize(
    ("stops", "pieces", "text"),
    [
        (["own fox"], ["The quick br", "own", " fox", " jumps"], "The quick br"),
        (["."], ["abc.d"], "abc"),
        (["\n"], ["a\n", "b"], "a"),
        (["aab"], ["aa", "ab"], "a"),
        (["ab", "xab"], ["x", "a", "b"], ""),
        (["abcd", "bc"], ["abcd"], "a"),
        (["😁!"], ["so 😁", "!"], "so "),
    ],
)
def test_the_text_ends_before_the_stop_string(
    stops: list[str], pieces: list[str], text: str
) -> None:
    """CASES 06, 12: literal, over any cut, and no part of it ever leaves."""
    out, met = _run(stops, pieces)
    assert met
    assert "".join(out) == text


def test_nothing_is_held_without_need() -> None:
    """CASES 10: a long stop string that shares no beginning with the text delays nothing."""
    matcher = StopMatcher(["#" * 40])
    for index in range(100):
        assert matcher.push(f"word{index} ") == (f"word{index} ", False)


def test_only_a_proper_prefix_is_held() -> None:
    """What can no longer become the stop string leaves at once; the rest at the end."""
    assert _run(["abab"], ["xaba", "c", "ab"]) == (["x", "abac", "", "ab"], False)


def test_without_stop_strings_text_passes() -> None:
    """No stop strings, no work."""
    assert _run([], ["a", "b"]) == (["a", "b", ""], False)
