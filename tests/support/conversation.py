"""Replays a recorded conversation (tests/vectors/conversations/*.json) on the client machine.

A conversation is a list of steps: at `at_ms` the machine hears `event`, and then gives `effects`,
is in `state`, and wants to be called at `deadline_ms`. Frames are the JSON bodies of the wire, so
that a client in any language can replay it. `python -m tests.support.conversation` writes what
the machine does now into the files, for a person to compare with what they said before.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seedance.protocol import client_events as on
from seedance.protocol.client import ClientMachine
from seedance.protocol.frames import Generate
from seedance.protocol.json_codec import decode_client, decode_server, encode_client, encode_server

__all__ = ["CONVERSATIONS", "VECTORS", "play"]

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
CONVERSATIONS = sorted((VECTORS / "conversations").glob("*.json"))


def _submit(frame: dict[str, Any]) -> on.Submit:
    generate = decode_client(json.dumps(frame))
    assert isinstance(generate, Generate)
    return on.Submit(generate)


_EVENTS: dict[str, Callable[[Any], on.Event]] = {
    "connect": lambda _: on.Connect(),
    "submit": _submit,
    "abort": on.Abort,
    "opened": lambda _: on.Opened(),
    "received": lambda frame: on.Received(*decode_server(json.dumps(frame))),
    "lost": on.Lost,
    "tick": lambda _: on.Tick(),
    "shut": lambda _: on.Shut(),
}


def _event(body: dict[str, Any]) -> on.Event:
    if "reading" in body:
        return on.Reading(body["reading"], body["behind"])
    [(name, value)] = body.items()
    return _EVENTS[name](value)


def _effect(effect: on.Effect) -> dict[str, Any]:
    match effect:
        case on.Dial(url):
            return {"dial": url}
        case on.Send(frame):
            return {"send": json.loads(encode_client(frame))}
        case on.Hangup(close_code):
            return {"hangup": close_code}
        case on.Deliver(frame):
            return {"deliver": json.loads(encode_server(frame))}


def play(conversation: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation's steps as the machine now answers them."""
    machine = ClientMachine(conversation["url"], jitter=lambda: conversation["jitter"])
    steps = []
    for step in conversation["steps"]:
        effects = machine.step(_event(step["event"]), step["at_ms"] / 1000)
        deadline = machine.deadline()
        steps.append(
            {
                "at_ms": step["at_ms"],
                "event": step["event"],
                "effects": [_effect(effect) for effect in effects],
                "state": machine.state.value,
                "deadline_ms": None if deadline is None else math.ceil(deadline * 1000 - 1e-6),
            }
        )
    return steps


def _write() -> None:
    for path in CONVERSATIONS:
        conversation = json.loads(path.read_text())
        conversation["steps"] = play(conversation)
        path.write_text(json.dumps(conversation, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    _write()
