"""`seedance chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.prompt import Prompt

from mesh.settings import exit_with
from seedance import SeedanceClient
from seedance.protocol.errors import SeedanceError
from seedance.protocol.reconnect import Backoff

__all__ = ["run_chat"]

# The conversation that is sent along; older turns are left out, so that it always fits.
TURNS_MAX = 20
# A person waits: that nobody is there is said within seconds.
TRIES_MAX = 4


def _answer(
    client: SeedanceClient, turns: list[dict[str, str]], model: str | None, temperature: float
) -> str:
    """Print the answer as it comes; Ctrl-C cancels it and keeps the conversation."""
    text = ""
    stream = client.chat(messages=turns, model=model, temperature=temperature)
    try:
        for chunk in stream:
            text += chunk.delta
            print(chunk.delta, end="", flush=True)
    except KeyboardInterrupt:
        stream.cancel()
    print()
    return text


def _talk(client: SeedanceClient, model: str | None, temperature: float) -> None:
    console = Console()
    console.print("Ask something. Ctrl-C stops an answer, Ctrl-D ends.", style="dim")
    turns: list[dict[str, str]] = []
    while True:
        try:
            question = Prompt.ask("[bold]you[/bold]", console=console)
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if not question.strip():
            continue
        turns.append({"role": "user", "content": question})
        answer = _answer(client, turns[-TURNS_MAX:], model, temperature)
        turns.append({"role": "assistant", "content": answer})


def run_chat(
    url: str,
    *,
    model: str | None,
    api_key: str | None,
    temperature: float,
    question: str | None,
    ca_cert: Path | None = None,
) -> None:
    """Ask `question` once, or talk until the user ends it; a failure is one line and exit code 2."""
    try:
        client = SeedanceClient(
            url, api_key=api_key, ca_cert=ca_cert, backoff=Backoff(tries_max=TRIES_MAX)
        )
    except OSError as error:
        exit_with(f"--ca-cert {ca_cert} cannot be used: {error.strerror or 'it is no PEM'}")
    try:
        if question is not None:
            _answer(client, [{"role": "user", "content": question}], model, temperature)
        elif sys.stdin.isatty():
            _talk(client, model, temperature)
        else:
            prompt = [{"role": "user", "content": sys.stdin.read()}]
            _answer(client, prompt, model, temperature)
    except SeedanceError as error:
        exit_with(f"{error.code.value}: {error.message}")
    except OSError:
        exit_with(f"no answer from {url}; is the mesh up? `seedance up` starts one")
    finally:
        client.close()
