"""`seedance chat`: a conversation in the terminal."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path

from rich.console import Console
from rich.prompt import Prompt

from mesh.settings import exit_with
from seedance import SeedanceClient
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.reconnect import Backoff

__all__ = ["remedy", "run_chat"]

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


def _why(error: OSError) -> str:
    return "it is no PEM file" if isinstance(error, ssl.SSLError) else str(error.strerror)


def remedy(error: SeedanceError, url: str) -> str:
    """What to look at, where the message alone does not help."""
    if error.code is ErrorCode.UNAUTHORIZED:
        return "; give a key in SEEDANCE_API_KEY, or with --api-key"
    if error.code is not ErrorCode.UNAVAILABLE:
        return ""
    secure = url.startswith(("wss:", "https:"))
    doubt = (
        "does this machine trust its certificate (--ca-cert)"
        if secure
        else "is the mesh up (one with a certificate is wss://)"
    )
    return f" ({url}); {doubt}? `seedance ps` lists what runs here, --url names another gateway"


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
    except ValueError:
        exit_with(
            f"--url {url}: write ws://HOST:PORT, or wss:// where the gateway has a certificate"
        )
    except OSError as error:
        exit_with(f"--ca-cert {ca_cert} cannot be used: {_why(error)}")
    try:
        if question is not None:
            _answer(client, [{"role": "user", "content": question}], model, temperature)
        elif sys.stdin.isatty():
            _talk(client, model, temperature)
        else:
            prompt = [{"role": "user", "content": sys.stdin.read()}]
            _answer(client, prompt, model, temperature)
    except SeedanceError as error:
        exit_with(f"{error.code.value}: {error.message}{remedy(error, url)}")
    finally:
        client.close()
