"""The flags of `seedance bench`; what they start is imported when it is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from launcher.loadtest.arrivals import Arrivals
from launcher.loadtest.load import Face, Load, Target, target_of
from launcher.meshfile import gateway_url
from mesh.settings import exit_with

__all__ = ["bench"]

CONNECTIONS_MAX, STREAMS_MAX = 10_000, 64


def _option(panel: str, text: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


_WHO, _WHAT, _WHEN = "Who asks", "What is asked", "When"
_TROUBLE, _BESIDE, _OUT = "Trouble", "Side by side", "Report"

Connections = Annotated[int, _option(_WHO, "Connections.", "--connections", "-c", min=1, max=CONNECTIONS_MAX)]  # fmt: skip
Streams = Annotated[int, _option(_WHO, "Requests at once on each. OpenAI's API gets as many more connections.", min=1, max=STREAMS_MAX)]  # fmt: skip
ConnectRate = Annotated[float, _option(_WHO, "Connections opened a second; a large number: all at once.", min=0.1)]  # fmt: skip
Subprotocol = Annotated[Literal["json", "proto", "proto.zstd", "none"], _option(_WHO, "Of a WebSocket; none: a simple client, without acknowledgements.")]  # fmt: skip
Key = Annotated[str, _option(_WHO, "API key.", envvar="SEEDANCE_API_KEY")]
KeysFile = Annotated[Path | None, _option(_WHO, "API keys, one a line: each connection draws one.")]
Users = Annotated[int, _option(_WHO, "Users that connections are drawn from.", min=1)]
Skew = Annotated[float, _option(_WHO, "Zipf's exponent for keys and users; 0: evenly.", "--zipf", min=0, max=5)]  # fmt: skip
Prompt = Annotated[str, _option(_WHAT, "`script`: a text that the script engine spells, so every byte is checked; `chat`: built-in questions; or a file, a prompt a line.", "--prompts")]  # fmt: skip
Tokens = Annotated[int, _option(_WHAT, "Longest answer.", min=1, max=100_000)]
TokenMs = Annotated[float, _option(_WHAT, "Time between a script's tokens; 0: as fast as it goes.", min=0)]  # fmt: skip
Model = Annotated[str, _option(_WHAT, "Model name. Default: the server's own.")]
Temperature = Annotated[float, _option(_WHAT, "0: a prompt's answers are compared with each other.", min=0, max=2)]  # fmt: skip
Unique = Annotated[bool, _option(_WHAT, "A number before each prompt: no prefix cache helps, and answers are not compared.", "--unique")]  # fmt: skip
When = Annotated[Arrivals, _option(_WHEN, "closed: ask again when answered; the others come whatever the server does.")]  # fmt: skip
Rate = Annotated[float, _option(_WHEN, "Requests a second of an open loop.", min=0.01, max=100_000)]
BurstEvery = Annotated[float, _option(_WHEN, "Seconds between bursts; each has a period's requests.", min=0.1)]  # fmt: skip
Duration = Annotated[int, _option(_WHEN, "Seconds of each run, once all are connected.", min=1, max=86_400)]  # fmt: skip
SlowShare = Annotated[float, _option(_TROUBLE, "Share of connections that read 4 KiB, then pause half a second.", min=0, max=1)]  # fmt: skip
StormAt = Annotated[float, _option(_TROUBLE, "Seconds after which connections are cut at once and come back; 0: never.", min=0)]  # fmt: skip
StormShare = Annotated[float, _option(_TROUBLE, "Share of them that is cut.", min=0, max=1)]
Against = Annotated[str, _option(_BESIDE, "Run the same on this OpenAI-compatible server, in turns, and print the ratios.")]  # fmt: skip
AgainstModel = Annotated[str, _option(_BESIDE, "Its model name.")]
AgainstKey = Annotated[str, _option(_BESIDE, "Its API key.", envvar="OPENAI_API_KEY")]
Rounds = Annotated[int, _option(_BESIDE, "Runs of each target, in turns.", min=1, max=100)]
Seed = Annotated[int, _option(_WHEN, "Repeats arrivals, keys and users.")]
OutputJson = Annotated[Path | None, _option(_OUT, "Everything as JSON.")]
Html = Annotated[Path | None, _option(_OUT, "A page with charts.", "--html")]
Url = Annotated[
    str,
    typer.Argument(
        help="ws://HOST:PORT a gateway's WebSocket, http://HOST:PORT OpenAI's API, "
        "grpc://HOST:PORT an instance. Default: a gateway of the mesh in .seedance, else ws://127.0.0.1:8080."
    ),
]


def bench(
    url: Url = "",
    *,
    connections: Connections = 16,
    streams: Streams = 1,
    connect_rate: ConnectRate = 500,
    subprotocol: Subprotocol = "json",
    key: Key = "",
    keys_file: KeysFile = None,
    users: Users = 100,
    zipf: Skew = 1.0,
    prompts: Prompt = "script",
    tokens: Tokens = 64,
    token_ms: TokenMs = 20,
    model: Model = "",
    temperature: Temperature = 0,
    unique: Unique = False,
    arrivals: When = Arrivals.CLOSED,
    rate: Rate = 10,
    burst_every: BurstEvery = 5,
    duration: Duration = 10,
    seed: Seed = 1,
    slow_share: SlowShare = 0,
    storm_at: StormAt = 0,
    storm_share: StormShare = 1,
    against: Against = "",
    against_model: AgainstModel = "",
    against_key: AgainstKey = "",
    rounds: Rounds = 1,
    output_json: OutputJson = None,
    html: Html = None,
) -> None:
    """Put load on a mesh and measure: times, tokens a second, errors, and whether every text is exact.

    Try it: `seedance up --engine script` in one terminal, `seedance bench` in another. Then
    `seedance bench -c 1000 --arrivals poisson --rate 200 --html report.html`. Against a real model:
    `seedance bench http://HOST:PORT --prompts chat --against http://OTHER:8000`.
    """
    from launcher.loadtest.command import read_keys, read_prompts, run_bench  # gRPC loads slowly

    load = Load(
        connections, streams, connect_rate, arrivals, rate, burst_every, duration,
        max_tokens=tokens, temperature=temperature, users=users, zipf=zipf, slow_share=slow_share,
        storm_at_s=storm_at, storm_share=storm_share, seed=seed,
    )  # fmt: skip
    spoken = "" if subprotocol == "none" else f"seedance.v2.{subprotocol}"
    targets = [
        _target(url or gateway_url(Path(".seedance")), spoken, model, read_keys(keys_file, key))
    ]
    if against:
        targets.append(_beside(against, against_model or model, against_key))
    asked = read_prompts(prompts, load, token_ms, unique=unique)
    run_bench(targets, load, asked, rounds=rounds, output_json=output_json, html=html)


def _target(url: str, subprotocol: str, model: str, keys: tuple[str, ...]) -> Target:
    try:
        return target_of(url, subprotocol=subprotocol, model=model, keys=keys)
    except ValueError as error:
        exit_with(str(error))


def _beside(url: str, model: str, key: str) -> Target:
    target = _target(url, "", model, (key,) if key else ())
    if target.face is not Face.SSE:
        exit_with(f"--against {url}: write http://HOST:PORT of an OpenAI-compatible server")
    return target
