"""docker-compose.yml, the Dockerfiles and the settings agree, without a Docker engine."""

from __future__ import annotations

import importlib
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from launcher.models import DEFAULT_MODEL, LOCAL_ALIASES
from mesh.settings import ENV_PREFIX, ServiceSettings
from tests.support.imports import reachable

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
GPU: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())
DOCKERFILES = {path.stem: path for path in (ROOT / "deploy" / "docker").glob("*.Dockerfile")}
SETTINGS = {
    "gateway": "GatewaySettings",
    "router": "RouterSettings",
    "metering": "MeteringSettings",
    "inference": "InferenceSettings",
}
OURS = {name: s for name, s in COMPOSE["services"].items() if "build" in s}


def _kind(service: dict[str, Any]) -> str:
    return Path(service["build"]["dockerfile"]).stem


@cache
def _settings(kind: str) -> type[ServiceSettings]:
    found: type[ServiceSettings] = getattr(
        importlib.import_module(f"{kind}.config"), SETTINGS[kind]
    )
    return found


def _port(kind: str) -> int:
    return int(_settings(kind).model_fields["port"].default)


def _environment_of_image(kind: str) -> dict[str, str]:
    """What an image's last stage sets."""
    stage = DOCKERFILES[kind].read_text().rpartition("\nFROM ")[2]
    return dict(re.findall(rf"({ENV_PREFIX}\w+)=(\S+)", stage))


@pytest.mark.parametrize("name", OURS)
def test_every_variable_is_a_setting(name: str) -> None:
    """A SEEDANCE_ variable of a service, in the compose file or its image, is a field of its settings."""
    kind = _kind(OURS[name])
    known = {ENV_PREFIX + field.upper() for field in _settings(kind).model_fields}
    given = {*OURS[name]["environment"], *_environment_of_image(kind)}
    assert not {key for key in given if key.startswith(ENV_PREFIX)} - known


@pytest.mark.parametrize("name", OURS)
def test_the_settings_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service starts with the values that the compose file and its image give it."""
    kind = _kind(OURS[name])
    default = re.compile(r"\$\{\w+:?-([^}]*)\}")
    for key, value in {**_environment_of_image(kind), **OURS[name]["environment"]}.items():
        monkeypatch.setenv(key, default.sub(r"\1", value))
    assert _settings(kind)().otlp_endpoint == "http://collector:4317"


@pytest.mark.parametrize("name", OURS)
def test_addresses_name_services_and_their_ports(name: str) -> None:
    """Every `service:port` in a variable is a service of the file, on the port it listens on."""
    foreign = {"redis": 6379, "collector": 4317, "localhost": None}
    for key, value in OURS[name]["environment"].items():
        for host, port in re.findall(r"\b([a-z][\w-]*):(\d+)", value):
            if host in OURS:
                assert int(port) == _port(_kind(OURS[host])), key
            else:
                assert foreign[host] in {int(port), None}, key


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_image_listens_where_it_says(kind: str) -> None:
    """EXPOSE and the health check name the port of the settings, and the image listens on it."""
    text = DOCKERFILES[kind].read_text()
    assert re.findall(r"^EXPOSE (\d+)$", text, flags=re.MULTILINE) == [str(_port(kind))]
    assert re.findall(r"127\.0\.0\.1:(\d+)", text) == [str(_port(kind))]
    assert _environment_of_image(kind)[ENV_PREFIX + "HOST"] == "0.0.0.0"


def test_gateways_are_where_clients_are_told() -> None:
    """`session.gateways` lists exactly the published ports of the gateways."""
    published = set()
    gateways = [s for s in OURS.values() if _kind(s) == "gateway"]
    for gateway in gateways:
        for port in gateway["ports"]:
            _, outer, inner = port.split(":")
            assert int(inner) == _port("gateway")
            published.add(f"ws://localhost:{outer}")
    assert published == {"ws://localhost:8080", "ws://localhost:8081"}
    for gateway in gateways:
        assert set(gateway["environment"]["SEEDANCE_GATEWAYS"].split(",")) == published


def test_ports_are_published_on_loopback_alone() -> None:
    """Callers need no key here, so nothing is reachable from another machine."""
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_an_anonymous_gateway_is_for_this_machine() -> None:
    """A container listens everywhere in its own network; what counts is where its port is published."""
    gateway = _settings("gateway")
    local = {"host": "0.0.0.0", "anonymous_tenant": "local"}
    with pytest.raises(ValidationError, match="local use"):
        gateway(**local)
    with pytest.raises(ValidationError, match="local use"):
        gateway(**local, published_host="192.0.2.1")
    assert gateway(**local, published_host="127.0.0.1").host == "0.0.0.0"


def test_the_image_serves_what_a_local_mesh_serves() -> None:
    """The default model in the image has the name and aliases that `seedance up` gives it."""
    environment = _environment_of_image("inference")
    assert Path(environment["SEEDANCE_MODEL"]).name == DEFAULT_MODEL.file_name
    assert environment["SEEDANCE_MODEL_NAME"] == DEFAULT_MODEL.name
    assert environment["SEEDANCE_ALIASES"] == ",".join(LOCAL_ALIASES)


def test_gpus_stand_in_the_override_alone() -> None:
    """The file itself comes up where no GPU driver is; the override touches only instances."""
    assert "devices" not in (ROOT / "docker-compose.yml").read_text()
    assert set(GPU["services"]) == {n for n, s in OURS.items() if _kind(s) == "inference"}


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_image_carries_its_own_service_alone(kind: str) -> None:
    """Only the service's extra is installed and only the packages that it imports are copied."""
    text = DOCKERFILES[kind].read_text()
    # A ledger may be PostgreSQL's: its driver is an extra of its own.
    extras = [kind, "postgres"] if kind == "metering" else [kind]
    assert re.findall(r'"\.\[([\w,]+)\]"', text) == [",".join(extras)]
    assert ("torch" in text.replace("No torch", "")) is (kind == "inference")
    last = text.rpartition("\nFROM ")[2]
    copied = {ROOT / line.split()[1] for line in re.findall(r"^COPY (?!--).*$", last, re.MULTILINE)}
    copied -= {ROOT / "deploy" / "docker" / "is_serving.py"}
    needed, _ = reachable(kind)
    missing = {f for f in needed if not any(f == c or c in f.parents for c in copied)}
    assert not missing
    assert all(any(f == c or c in f.parents for f in needed) for c in copied)


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_image_runs_as_nobody_and_drains(kind: str) -> None:
    """Not root, a health check, SIGTERM; and nothing that only some builders can do."""
    text = DOCKERFILES[kind].read_text()
    assert re.search(r"^USER seedance$", text, flags=re.MULTILINE)
    assert "\nHEALTHCHECK " in text
    assert "\nSTOPSIGNAL SIGTERM\n" in text
    assert "# syntax" not in text
    assert "@sha256" not in text
