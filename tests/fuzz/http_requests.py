"""Requests that the OpenAPI document allows, forbids, or has no idea of."""

from __future__ import annotations

import json
from typing import Any

import requests
import schemathesis
from hypothesis import given, seed
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fuzz.mutation import ANY_JSON, Wounds, corpus, many
from tests.fuzz.verdict import Verdict
from tests.support.scripts import script

__all__ = ["fuzz_by_bytes", "fuzz_by_document"]

TIMEOUT_S = 30
# The script engine refuses every other text: half of the allowed requests say this.
SPOKEN = script([b"a", b"\xf0\x9f", b"\x98\x81", b" b"])
CONFORMS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
GENERATING = ("/v1/chat/completions", "/v1/completions")
BODIES = st.fixed_dictionaries(
    {"messages": st.just([{"role": "user", "content": SPOKEN}])},
    optional=dict.fromkeys(
        ("n", "stop", "seed", "stream", "logprobs", "logit_bias", "user", "tools"), ANY_JSON
    ),
)
# Neither is read as JSON by anybody who guesses at the type.
MEDIA = ("application/json", "text/plain", "application/x-protobuf", "")
NOISE_BYTES_MAX = 200


def _sound(response: Any) -> None:
    """No fault of ours, and an error that every client can read."""
    later = response.status_code == 503 and "Retry-After" in response.headers
    assert response.status_code < 500 or later, f"{response.status_code} {response.text[:500]}"
    if response.status_code >= 400 and response.request.method != "HEAD":
        error = json.loads(response.text, parse_constant=_no_constant)["error"]
        assert set(error) == {"message", "type", "param", "code"}
    if "text/event-stream" in response.headers.get("content-type", ""):
        *_, last = response.text.strip().split("\n\n")
        assert last == "data: [DONE]" or "error" in json.loads(last.removeprefix("data: "))


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _speak(case: schemathesis.Case) -> None:
    """Make the text one that is answered, and the answer one that ends."""
    if not isinstance(case.body, dict):
        return
    messages = case.body.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], dict):
        messages[-1] = {"role": "user", "content": SPOKEN}
        del messages[:-2]
    elif "prompt" in case.body:
        case.body["prompt"] = SPOKEN
    for name in ("model", "min_tokens", "max_tokens", "max_completion_tokens", "logit_bias"):
        case.body.pop(name, None)


def _session() -> requests.Session:
    """One connection for all, and no look into the environment before each request."""
    session = requests.Session()
    session.trust_env = False
    return session


def fuzz_by_document(url: str, examples: int, number: int, verdict: Verdict) -> None:
    """Send `examples` requests that the document allows or forbids; `number` decides which."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    operations += [op for op in operations if op.path in GENERATING] * 4
    kinds = [
        op.as_strategy(generation_mode=mode)
        for op in operations
        for mode in schemathesis.GenerationMode
    ]

    @seed(number)
    @many(examples)
    @given(st.one_of(kinds), st.booleans())
    def send(case: schemathesis.Case, speaks: bool) -> None:
        allowed = case.meta is None or case.meta.generation.mode.is_positive
        if allowed and speaks:
            _speak(case)
        verdict.sent["requests by the document"] += 1
        with verdict.judging(case, shown=schemathesis.Case.as_curl_command):
            response = case.call(base_url=url, session=session, timeout=TIMEOUT_S)
            verdict.answers[f"HTTP {response.status_code}"] += 1
            _sound(response)
            # 413 is a refusal, too: schemathesis does not count it as one.
            refused = allowed or response.status_code == 413
            checks = CONFORMS if refused else [*CONFORMS, negative_data_rejection]
            case.validate_response(response, checks=checks)

    with _session() as session:
        send()


def fuzz_by_bytes(url: str, examples: int, number: int, verdict: Verdict) -> None:
    """Send `examples` bodies that are nearly JSON, or not at all; `number` decides which."""
    wounds = Wounds(number)
    bodies = corpus(BODIES, examples, number)
    with _session() as session:
        for _ in range(examples):
            body = _nearly(wounds, wounds.random.choice(bodies))
            path, media = wounds.random.choice(GENERATING), wounds.random.choice(MEDIA)
            verdict.sent["requests by bytes"] += 1
            with verdict.judging((path, media, body)):
                headers = {"Content-Type": media}
                response = session.post(url + path, data=body, headers=headers, timeout=TIMEOUT_S)
                verdict.answers[f"HTTP {response.status_code}"] += 1
                _sound(response)


def _nearly(wounds: Wounds, body: dict[str, Any]) -> bytes:
    match wounds.random.choice(("noise", "json", "bytes")):
        case "noise":
            return wounds.random.randbytes(wounds.random.randint(0, NOISE_BYTES_MAX))
        case "json":
            return wounds.in_json(body).encode(errors="surrogatepass")
        case _:
            return wounds.in_bytes(wounds.in_json(body).encode(errors="surrogatepass"))
