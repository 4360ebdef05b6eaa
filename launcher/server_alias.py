"""`seedance-server`: the all-in-one command under its old name, with its old flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from launcher.blueprint import INSTANCES_DEFAULT, UpOptions
from launcher.cli import DATA_DEFAULT, DataOption, LogLevelOption, start_mesh

__all__ = ["main", "serve"]


def serve(
    model_path: Annotated[
        str | None, typer.Option("--model-path", "--model", help="Model folder, GGUF file or id.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to serve on.", min=1, max=65535)] = 8080,
    max_conns: Annotated[
        int, typer.Option("--max-conns", help="Most connections per gateway.", min=1)
    ] = 10_000,
    _streaming_enabled: Annotated[
        Literal["true", "false"],
        typer.Option(
            "--streaming-enabled", case_sensitive=False, help="Accepted; the mesh always streams."
        ),
    ] = "true",
    kv_cache_dtype: Annotated[
        Literal["auto", "fp32", "fp16", "bf16"],
        typer.Option("--kv-cache-dtype", help="How keys and values are held."),
    ] = "auto",
    log_level: LogLevelOption = "warning",
    trace_output: Annotated[
        Path | None,
        typer.Option("--trace-output", help="Write the engine's steps there as a Chrome trace."),
    ] = None,
    data: DataOption = DATA_DEFAULT,
) -> None:
    """Start the whole mesh on this machine."""
    inference = ["--kv-cache-dtype", kv_cache_dtype]
    if trace_output is not None:
        inference += ["--trace-output", str(trace_output.resolve())]
    options = UpOptions(
        data=data.resolve(),
        port=port,
        log_level=log_level,
        # One trace file has one writer.
        instances=INSTANCES_DEFAULT if trace_output is None else 1,
        gateway_flags=("--connections-max", str(max_conns)),
        inference_flags=tuple(inference),
    )
    start_mesh(options, model_path)


def main() -> None:
    """Entry point of `seedance-server`."""
    typer.run(serve)
