"""Text survives any cutting: detokenizer and stop strings against naive models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.answer import Answer, AnswerRules
from inference.engine.detokenizer import Detokenizer
from inference.engine.plan import Sampled
from inference.engine.stop import StopMatcher

# Pieces that collide with each other on purpose: parts of code points, and invalid bytes.
_BYTES = st.lists(
    st.one_of(
        st.binary(max_size=3),
        st.sampled_from([b"\xf0", b"\x9f", b"\xf0\x9f", b"\x98\x81", b"\xc3", b"\xb6", b"a", b""]),
    ),
    max_size=30,
)
_TEXT = st.text(alphabet="abc😁", max_size=40)
_STOPS = st.lists(st.text(alphabet="abc😁", min_size=1, max_size=5), max_size=4)


def _cut(text: str, lengths: list[int]) -> list[str]:
    pieces = []
    for length in lengths:
        pieces.append(text[:length])
        text = text[length:]
    return [*pieces, text]


def _naive_stop(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first (of several, the longest)."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))]
    return text


@given(_BYTES)
def test_detokenizing_is_decoding(pieces: list[bytes]) -> None:
    """However bytes are cut, the text is `bytes.decode("utf-8", "replace")` of all of them."""
    detokenizer = Detokenizer()
    text = "".join(detokenizer.push(piece) for piece in pieces) + detokenizer.flush()
    assert text == b"".join(pieces).decode("utf-8", "replace")


@given(_TEXT, _STOPS, st.lists(st.integers(0, 6), max_size=20))
def test_stop_strings_do_not_depend_on_the_cut(
    text: str, stops: list[str], lengths: list[int]
) -> None:
    """Any cut gives what a look at the whole text gives."""
    matcher, out, met = StopMatcher(stops), "", False
    for piece in _cut(text, lengths):
        piece_out, met = matcher.push(piece)
        out += piece_out
        if met:
            break
    if not met:
        out += matcher.flush()
    assert out == _naive_stop(text, stops)


@given(_TEXT, _STOPS, st.lists(st.integers(0, 6), max_size=20))
def test_only_what_could_become_a_stop_string_is_held(
    text: str, stops: list[str], lengths: list[int]
) -> None:
    """After each piece, what is held back is exactly the longest suffix that begins a stop string."""
    matcher, seen, left = StopMatcher(stops), "", ""
    for piece in _cut(text, lengths):
        out, met = matcher.push(piece)
        seen, left = seen + piece, left + out
        if met:
            return
        held = max(
            (n for stop in stops for n in range(len(stop)) if seen.endswith(stop[:n])), default=0
        )
        assert left == seen[: len(seen) - held]


@given(_BYTES, _STOPS, st.integers(0, 30), st.integers(0, 8))
def test_a_continuation_is_the_same_answer(
    tokens: list[bytes], stops: list[str], cut: int, min_tokens: int
) -> None:
    """Ids, text, offsets and the end are those of an uninterrupted run, wherever it was cut."""
    rules = AnswerRules(
        max_tokens=1000, min_tokens=min_tokens, stop=tuple(stops), script_length=len(tokens) or None
    )

    def play(answer: Answer, start: int) -> str | None:
        for token_id in range(start, len(tokens)):
            reason = answer.take(Sampled(1, token_id))
            if reason is not None:
                answer.close()
                return reason.value
        return None

    whole = Answer(rules, tokens.__getitem__)
    reason = play(whole, 0)
    cut = min(cut, len(whole.ids))
    continued = Answer(rules, tokens.__getitem__)
    ended = continued.prime(range(cut))
    if ended is not None:
        continued.close()
        assert ended.value == reason
    else:
        assert play(continued, cut) == reason
    assert continued.text == whole.text
    assert continued.piece(cut, len(continued.ids)) == whole.piece(cut, len(whole.ids))
