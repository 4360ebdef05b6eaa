"""Scripts are read strictly and played exactly."""

from __future__ import annotations

import json

import pytest

from inference.engine.plan import PlanRow, StepPlan
from inference.script import ITEMS_MAX, REPEAT_MAX, ScriptPreparer, ScriptRunner, script_info
from seedance.protocol.errors import SeedanceError
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling
from tests.support.engine_driver import script_request
from tests.support.scripts import script


def test_a_script_in_the_last_message() -> None:
    """Bytes, pace, repeat; the prompt's tokens are all messages' bytes."""
    content = script([b"\xf0\x9f", b""], dt_ms=10, first_ms=5, repeat=3)
    request = GenerateRequest(messages=(ChatMessage("system", "é"), ChatMessage("user", content)))
    prepared = ScriptPreparer().prepare(request)
    assert [prepared.token_bytes(i) for i in range(2)] == [b"\xf0\x9f", b""]
    assert (prepared.dt_ms, prepared.first_ms, prepared.length) == (10, 5, 6)
    assert prepared.vocab_size == 2
    assert bytes(prepared.prompt_ids) == ("é" + content).encode()


@pytest.mark.parametrize("way", ["prompt", "ids"])
def test_a_script_as_raw_prompt(way: str) -> None:
    """A completion's prompt, or its bytes as token ids, is the script itself."""
    content = script([b"a"])
    request = (
        GenerateRequest(prompt=content)
        if way == "prompt"
        else GenerateRequest(prompt_token_ids=tuple(content.encode()))
    )
    prepared = ScriptPreparer().prepare(request)
    assert bytes(prepared.prompt_ids) == content.encode()
    assert prepared.length == 1


@pytest.mark.parametrize(
    ("content", "field"),
    [
        ("hello", "messages[-1].content"),
        ("[]", "messages[-1].content"),
        ("[" * 100_000, "messages[-1].content"),
        ("{}", "messages[-1].content.tokens_b64"),
        (json.dumps({"tokens_b64": []}), "messages[-1].content.tokens_b64"),
        (json.dumps({"tokens_b64": "YQ=="}), "messages[-1].content.tokens_b64"),
        (
            json.dumps({"tokens_b64": [""] * (ITEMS_MAX + 1)}),
            "messages[-1].content.tokens_b64",
        ),
        (json.dumps({"tokens_b64": ["YQ==", "?"]}), "messages[-1].content.tokens_b64[1]"),
        (json.dumps({"tokens_b64": ["é"]}), "messages[-1].content.tokens_b64[0]"),
        (json.dumps({"tokens_b64": [7]}), "messages[-1].content.tokens_b64[0]"),
        ('{"tokens_b64": ["YQ=="], "dt_ms": NaN}', "messages[-1].content.dt_ms"),
        ('{"tokens_b64": ["YQ=="], "dt_ms": -1}', "messages[-1].content.dt_ms"),
        ('{"tokens_b64": ["YQ=="], "dt_ms": "5"}', "messages[-1].content.dt_ms"),
        ('{"tokens_b64": ["YQ=="], "first_ms": true}', "messages[-1].content.first_ms"),
        ('{"tokens_b64": ["YQ=="], "repeat": 0}', "messages[-1].content.repeat"),
        ('{"tokens_b64": ["YQ=="], "repeat": 1.5}', "messages[-1].content.repeat"),
        (
            json.dumps({"tokens_b64": ["YQ=="], "repeat": REPEAT_MAX + 1}),
            "messages[-1].content.repeat",
        ),
    ],
)
def test_what_is_no_script_names_its_fault(content: str, field: str) -> None:
    """`bad_request` with the path to the field, at every bound."""
    with pytest.raises(SeedanceError) as caught:
        ScriptPreparer().prepare(script_request(content))
    assert (caught.value.code, caught.value.field) == ("bad_request", field)


def _row(position: int, sampling: Sampling) -> PlanRow:
    return PlanRow(
        sequence_id=1,
        token_ids=[1],
        start=0,
        block_table=[0],
        sample=True,
        sampling=sampling,
        seed=0,
        answer_position=position,
        answer_ids=[],
        prompt_ids=[],
        vocab_size=3,
    )


def test_an_id_is_an_index_in_the_list() -> None:
    """The list again and again; a position decides, nothing else."""
    runner = ScriptRunner(script_info())
    plan = StepPlan([_row(position, Sampling()) for position in (0, 2, 3, 7)])
    assert [s.token_id for s in runner.run(plan)] == [0, 2, 0, 1]


def test_a_script_is_certain() -> None:
    """Log-probabilities, when asked, are 0."""
    (sampled,) = ScriptRunner(script_info()).run(StepPlan([_row(0, Sampling(logprobs=1))]))
    assert sampled.logprob == 0.0
    assert [top.token_id for top in sampled.top] == [0]
