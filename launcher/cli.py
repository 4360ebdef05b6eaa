"""The `seedance` command."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer
from rich.console import Console
from rich.table import Table

import seedance
from launcher.blueprint import INSTANCES_DEFAULT, UpOptions
from launcher.canary import router_address, run_canary
from launcher.chat import run_chat
from launcher.environment import mesh_secret
from launcher.files import files_of, mesh_identity
from launcher.loadtest.cli import bench
from launcher.meshfile import gateway_url, read_mesh
from launcher.models import ModelNotAvailableError, resolve_model
from launcher.up import run_up
from mesh.canary import SHARE_MAX
from mesh.settings import LogLevel, exit_with
from seedance.v2.router_pb2 import ControlCanaryRequest

__all__ = [
    "app",
    "canary",
    "canary_set",
    "canary_status",
    "canary_stop",
    "chat",
    "correct",
    "invoice",
    "key",
    "main",
    "ps",
    "pull",
    "roi",
    "start_mesh",
    "up",
]

DATA_DEFAULT = Path(".seedance")
PLANS_DEFAULT = Path("plans.yaml")
KEY_BYTES = 32
UP_EPILOG = (
    "Every setting of a service is a variable here, and goes to whom it concerns: "
    "`SEEDANCE_TENANTS_FILE=tenants.yaml SEEDANCE_PLANS=plans.yaml seedance up`. "
    "`seedance gateway --help` and the other services' list them."
)
SERVICES = ("gateway", "router", "inference", "metering")

app = typer.Typer(
    name="seedance",
    help="Stream a language model's tokens exactly once. Begin with `seedance up`.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
model_app = typer.Typer(help="Models on this machine.", no_args_is_help=True)
app.add_typer(model_app, name="model")
app.command("bench")(bench)
canary_app = typer.Typer(help="A new version beside the old one.", no_args_is_help=True)
app.add_typer(canary_app, name="canary")

DataOption = Annotated[Path, typer.Option("--data", help="Folder for store, ledger and logs.")]
TlsCertOption = Annotated[
    Path | None,
    typer.Option(envvar="SEEDANCE_TLS_CERT", help="Certificate for clients: https:// and wss://."),
]
TlsKeyOption = Annotated[Path | None, typer.Option(envvar="SEEDANCE_TLS_KEY", help="Its key.")]
MtlsCertOption = Annotated[
    Path | None,
    typer.Option(envvar="SEEDANCE_MTLS_CERT", help="Certificate between services: mutual TLS."),
]
MtlsKeyOption = Annotated[Path | None, typer.Option(envvar="SEEDANCE_MTLS_KEY", help="Its key.")]
MtlsCaOption = Annotated[
    Path | None, typer.Option(envvar="SEEDANCE_MTLS_CA", help="The authority that signed it.")
]
RouterOption = Annotated[
    str, typer.Option("--router", help="The router, HOST:PORT. Default: that of the local mesh.")
]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Lowest level logged.")]


def _show_version(asked: bool) -> None:
    if asked:
        print(seedance.__version__)
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Stream a language model's tokens exactly once. Begin with `seedance up`."""


def start_mesh(options: UpOptions, model: str | None, *, restart: bool = True) -> None:
    """Find the model (fetch it once if need be) and run the mesh until it is told to stop."""
    if options.engine == "native":
        try:
            found = resolve_model(model)
        except ModelNotAvailableError as error:
            exit_with(str(error))
        options = replace(
            options, model=found.path, model_name=found.name, aliases=tuple(found.aliases)
        )
    run_up(options, restart=restart)


@app.command(epilog=UP_EPILOG)
def up(
    port: Annotated[int, typer.Option(help="Port of the first gateway.", min=1, max=65535)] = 8080,
    gateways: Annotated[int, typer.Option(help="How many gateways.", min=1, max=16)] = 2,
    workers: Annotated[
        int, typer.Option(help="Processes of each gateway, on one port.", min=1, max=64)
    ] = 1,
    instances: Annotated[
        int, typer.Option(help="How many inference instances.", min=1, max=16)
    ] = INSTANCES_DEFAULT,
    engine: Annotated[
        Literal["native", "script"],
        typer.Option(help="A real model, or `script`: it plays the tokens in the message."),
    ] = "native",
    model: Annotated[
        str | None,
        typer.Option(
            help="A model folder, a GGUF file, or a Hugging Face id. Default: SmolLM2-135M."
        ),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    no_restart: Annotated[
        bool, typer.Option("--no-restart", help="Leave a process that died dead.")
    ] = False,
    otlp_endpoint: Annotated[
        str, typer.Option(help="Collector for traces, e.g. http://127.0.0.1:4317.")
    ] = "",
    log_level: LogLevelOption = "warning",
    threads: Annotated[
        int, typer.Option(help="Threads per instance; 0: by the machine.", min=0)
    ] = 0,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    mtls_cert: MtlsCertOption = None,
    mtls_key: MtlsKeyOption = None,
    mtls_ca: MtlsCaOption = None,
) -> None:
    """Start the whole mesh on this machine: store, router, inference, metering, gateways."""
    options = UpOptions(
        data=data.resolve(),
        port=port,
        gateways=gateways,
        workers=workers,
        instances=instances,
        engine=engine,
        otlp_endpoint=otlp_endpoint,
        log_level=log_level,
        threads=threads,
        tls=files_of("tls", cert=tls_cert, key=tls_key),
        mtls=files_of("mtls", cert=mtls_cert, key=mtls_key, ca=mtls_ca),
    )
    start_mesh(options, model, restart=not no_restart)


@app.command()
def ps(data: DataOption = DATA_DEFAULT) -> None:
    """List the processes of the mesh that runs on this machine."""
    table = Table("kind", "name", "pid", "address", "log", box=None)
    running = read_mesh(data)
    for process in running:
        row = (process.kind, process.name, str(process.pid), process.address, process.log)
        table.add_row(*row)
    if not running:
        exit_with(f"no mesh runs on {data}; start one with `seedance up`")
    Console(width=200 if not sys.stdout.isatty() else None).print(table)


@app.command()
def chat(
    url: Annotated[
        str, typer.Option(help="A gateway, ws://HOST:PORT. Default: that of the local mesh.")
    ] = "",
    data: DataOption = DATA_DEFAULT,
    model: Annotated[str | None, typer.Option(help="Model name. Default: the mesh's own.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="SEEDANCE_API_KEY", help="Key, where the mesh asks one.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0, max=2, help="0: always the likeliest token.")
    ] = 0.7,
    ca_cert: Annotated[
        Path | None, typer.Option(help="Authorities to trust for wss://, a PEM file.")
    ] = None,
    question: Annotated[
        str | None, typer.Argument(help="Ask this, print the answer, end. A pipe is read as one.")
    ] = None,
) -> None:
    """Talk with the model in the terminal."""
    run_chat(
        url or gateway_url(data),
        model=model,
        api_key=api_key,
        temperature=temperature,
        question=question,
        ca_cert=ca_cert,
    )


@app.command()
def invoice(
    tenant: Annotated[str, typer.Option(help="Whose.")],
    month: Annotated[str, typer.Option(help="YYYY-MM, in the plan's time zone.")],
    plans: Annotated[Path, typer.Option(help="The plan file.")] = PLANS_DEFAULT,
    ledger: Annotated[
        str, typer.Option(help="The ledger's URL. Default: that of the local mesh.")
    ] = "",
    data: DataOption = DATA_DEFAULT,
    close: Annotated[bool, typer.Option("--close", help="Close the month for good.")] = False,
    form: Annotated[
        Literal["json", "csv", "html"], typer.Option("--format", help="How it is written.")
    ] = "json",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A file instead of standard output.")
    ] = None,
) -> None:
    """Write a tenant's invoice: a draft, or with --close the month's last word."""
    from launcher.invoice import ledger_url, run_invoice  # the ledger's libraries load slowly

    run_invoice(
        ledger_url(ledger, data),
        plans,
        tenant=tenant,
        month=month,
        close=close,
        form=form,
        output=output,
    )


@app.command()
def correct(
    tenant: Annotated[str, typer.Option(help="Whose.")],
    amount: Annotated[str, typer.Option(help="A decimal; negative is given to the tenant.")],
    reason: Annotated[str, typer.Option(help="What the invoice says.")],
    name: Annotated[str, typer.Option(help="The correction's own: told again, it counts once.")],
    plans: Annotated[Path, typer.Option(help="The plan file, for its rounding.")] = PLANS_DEFAULT,
    ledger: Annotated[
        str, typer.Option(help="The ledger's URL. Default: that of the local mesh.")
    ] = "",
    data: DataOption = DATA_DEFAULT,
) -> None:
    """Put money on a tenant's running month by hand."""
    from launcher.invoice import correction_of, ledger_url, run_correction

    run_correction(ledger_url(ledger, data), plans, correction_of(name, tenant, amount, reason))


@app.command()
def roi(
    logs: Annotated[
        list[Path], typer.Argument(help="Access logs: JSON lines or nginx's combined format.")
    ],
    plans: Annotated[Path, typer.Option(help="The plan file.")] = PLANS_DEFAULT,
    plan: Annotated[str, typer.Option(help="Which plan of it. Default: its default.")] = "",
    pattern: Annotated[
        str, typer.Option(help="A line as a regular expression with groups time, status, bytes, …")
    ] = "",
    field: Annotated[
        list[str] | None, typer.Option(help="NAME=KEY: a field's key in JSON; repeat it.")
    ] = None,
    weight: Annotated[
        list[str] | None, typer.Option(help="NAME=0.35: a criterion's weight; repeat it.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(min=1, max=1000, help="Scale out over this many times the average.")
    ] = 2.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The report.")] = Path("roi.html"),
) -> None:
    """Say which way of charging is cheapest for the traffic of access logs."""
    from launcher.roi import run_roi  # the ledger's libraries load slowly

    run_roi(
        logs,
        plans,
        plan=plan,
        pattern=pattern,
        fields=field or (),
        weights=weight or (),
        threshold=threshold,
        output=output,
    )


@app.command()
def key() -> None:
    """Make an API key; whoever has the key is the tenant whose file names its hash."""
    made = "sk-" + secrets.token_urlsafe(KEY_BYTES)
    print(made)
    sys.stderr.write("shown once: give it to the tenant, and write into the tenants file:\n")
    sys.stderr.write(f'  keys: [{{sha256: "{hashlib.sha256(made.encode()).hexdigest()}"}}]\n')


@model_app.command("pull")
def pull(
    name: Annotated[
        str | None, typer.Argument(help="A Hugging Face id; left out: the default model.")
    ] = None,
) -> None:
    """Fetch a model once into the cache, and say where it is."""
    try:
        print(resolve_model(name).path)
    except ModelNotAvailableError as error:
        exit_with(str(error))


@canary_app.callback()
def canary(
    context: typer.Context,
    mtls_cert: MtlsCertOption = None,
    mtls_key: MtlsKeyOption = None,
    mtls_ca: MtlsCaOption = None,
) -> None:
    """Show the router the mesh's certificate, where it asks for one."""
    context.obj = mesh_identity(files_of("mtls", cert=mtls_cert, key=mtls_key, ca=mtls_ca))


def _canary(context: typer.Context, router: str, data: Path, request: ControlCanaryRequest) -> None:
    secret = mesh_secret(os.environ, data)
    run_canary(router_address(router, data), request, context.obj, secret)


@canary_app.command("status")
def canary_status(
    context: typer.Context, router: RouterOption = "", data: DataOption = DATA_DEFAULT
) -> None:
    """Say how the canary stands, and what has been seen of it."""
    _canary(context, router, data, ControlCanaryRequest())


@canary_app.command("set")
def canary_set(
    context: typer.Context,
    percent: Annotated[
        float, typer.Argument(min=0, max=100, help="Of the keys: 1, then 50, then 100.")
    ],
    router: RouterOption = "",
    data: DataOption = DATA_DEFAULT,
) -> None:
    """Give the canary a share of the keys; 0: only requests that ask for it."""
    request = ControlCanaryRequest(share=round(percent * SHARE_MAX / 100))
    _canary(context, router, data, request)


@canary_app.command("stop")
def canary_stop(
    context: typer.Context,
    reason: Annotated[str, typer.Option(help="What the status says.")] = "stopped by hand",
    router: RouterOption = "",
    data: DataOption = DATA_DEFAULT,
) -> None:
    """Send nobody to the canary any more, not even who asks for it."""
    _canary(context, router, data, ControlCanaryRequest(stop=reason))


def _run_service(kind: str, arguments: list[str]) -> NoReturn:
    """Become the service: one process, its own flags, its own `--help`."""
    os.execv(sys.executable, [sys.executable, "-m", kind, *arguments])  # noqa: S606


def main() -> None:
    """Entry point. Services take their own flags, so they are not parsed here."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVICES:
        _run_service(arguments[0], arguments[1:])
    app()


def _declare(kind: str, a_service: str) -> None:
    """List a service in `seedance --help`; `main` hands it over before this would run."""

    @app.command(kind, help=f"Run {a_service} alone; `seedance {kind} --help` lists its flags.")
    def _service() -> None:
        _run_service(kind, [])


for _kind in SERVICES:
    _declare(_kind, "an instance" if _kind == "inference" else f"one {_kind}")
