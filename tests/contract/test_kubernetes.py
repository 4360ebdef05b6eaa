"""deploy/kubernetes and the settings agree, without a cluster."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml

from mesh.settings import ENV_PREFIX, ServiceSettings
from tests.support.settings_table import settings_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KINDS = ("gateway", "router", "metering", "inference")
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = list(
    chain.from_iterable(
        yaml.safe_load_all((FOLDER / name).read_text()) for name in KUSTOMIZATION["resources"]
    )
)
ADAPTER = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())


def _of(kind: str) -> dict[str, dict[str, Any]]:
    return {o["metadata"]["name"]: o for o in OBJECTS if o["kind"] == kind}


WORKLOADS = _of("Deployment") | _of("StatefulSet")
SHARED: dict[str, str] = _of("ConfigMap")["seedance"]["data"]
_STAND_INS = {
    "metadata.name": "pod-0",
    "SEEDANCE_MESH_SECRET": "secret",
    "SEEDANCE_KEYS": "acme:" + "0" * 64,
}


def _pod(name: str) -> dict[str, Any]:
    return WORKLOADS[name]["spec"]["template"]["spec"]


def _container(name: str) -> dict[str, Any]:
    (container,) = _pod(name)["containers"]
    return container


def _environment(name: str) -> dict[str, str]:
    """What a pod's process sees; secrets and fields have a stand-in."""
    made = dict(SHARED)
    for entry in _container(name)["env"]:
        source = entry.get("valueFrom", {})
        named = source.get("fieldRef", {}).get("fieldPath") or source.get("secretKeyRef", {}).get(
            "key"
        )
        value = entry.get("value") or _STAND_INS[named]
        made[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda m, seen=made: seen[m[1]], value)
    return made


@cache
def _ports(name: str) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in _container(name)["ports"]}


def test_every_file_is_applied() -> None:
    """The kustomization names every manifest of the folder."""
    others = {"kustomization.yaml", "prometheus-adapter.yaml"}
    files = {path.name for path in FOLDER.glob("*.yaml")} - others
    assert files == set(KUSTOMIZATION["resources"])
    assert all({"apiVersion", "kind", "metadata"} <= set(one) for one in OBJECTS)


@pytest.mark.parametrize("name", KINDS)
def test_every_variable_is_a_setting(name: str) -> None:
    """A service knows each SEEDANCE_ variable of its pod: it would not start with another."""
    known = {ENV_PREFIX + field.upper() for field in settings_of(name).model_fields}
    assert set(_environment(name)) <= known


@pytest.mark.parametrize("name", KINDS)
def test_the_settings_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service starts with the values of its pod and its image."""
    image = (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text()
    stage = image.rpartition("\nFROM ")[2]
    given = dict(re.findall(rf"({ENV_PREFIX}\w+)=(\S+)", stage)) | _environment(name)
    for key, value in given.items():
        monkeypatch.setenv(key, value)
    settings = settings_of(name)()
    assert settings.log_json
    assert getattr(settings, "metrics_port", 0) in {0, *_ports(name).values()}


@pytest.mark.parametrize("name", KINDS)
def test_ports_and_probes_are_the_services_own(name: str) -> None:
    """A pod's first port is the one its settings listen on, and probes ask there by names that exist."""
    cls: type[ServiceSettings] = settings_of(name)
    container, ports = _container(name), _ports(name)
    assert next(iter(ports.values())) == cls.model_fields["port"].default
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = container.get(kind, {})
        asked = probe.get("grpc") or probe.get("httpGet") or probe.get("tcpSocket") or {}
        port = asked.get("port")
        assert port in {None, *ports, *ports.values()}, kind
        if "httpGet" in probe:
            assert f'"{asked["path"]}"' in (ROOT / "gateway" / "app.py").read_text()
    assert "readinessProbe" in container


def test_services_lead_to_pods() -> None:
    """Every Service selects a workload of the folder, on a port that its container has."""
    for name, service in _of("Service").items():
        assert service["spec"]["selector"] == {"app": name}
        assert WORKLOADS[name]["spec"]["template"]["metadata"]["labels"]["app"] == name
        for port in service["spec"]["ports"]:
            assert port.get("targetPort", port["name"]) in _ports(name)


@pytest.mark.parametrize("name", KINDS)
def test_addresses_name_services_and_their_ports(name: str) -> None:
    """Every `service:port` in a variable is a Service, on a port that it has."""
    services = {n: {p["port"] for p in s["spec"]["ports"]} for n, s in _of("Service").items()}
    for key, value in _environment(name).items():
        if key == "SEEDANCE_KEYS":
            continue
        for host, port in re.findall(r"\b([a-z]\w*):(\d+)", value):
            assert int(port) in services[host], key


@pytest.mark.parametrize("name", KINDS)
def test_a_pod_has_the_time_to_drain(name: str) -> None:
    """The kubelet waits for preStop and the whole of the grace time before it kills."""
    hook = _container(name).get("lifecycle", {}).get("preStop", {}).get("exec", {})
    before = float(hook["command"][1]) if hook else 0.0
    default = settings_of(name).model_fields["drain_grace_s"].default
    grace = float(_environment(name).get("SEEDANCE_DRAIN_GRACE_S", default))
    assert _pod(name)["terminationGracePeriodSeconds"] > before + grace


@pytest.mark.parametrize("name", KINDS)
def test_scraped_ports_serve_metrics(name: str) -> None:
    """Prometheus is sent to a port on which the pod answers it; a router has none."""
    metadata = WORKLOADS[name]["spec"]["template"]["metadata"]
    port = metadata.get("annotations", {}).get("prometheus.io/port")
    own = _environment(name).get("SEEDANCE_METRICS_PORT")
    assert port == {"gateway": str(_ports(name).get("http")), "router": None}.get(name, own)


def test_autoscalers_ask_for_what_is_measured() -> None:
    """Their targets exist, the adapter makes their metrics, and services make the adapter's."""
    made = {rule["name"]["as"] for rule in ADAPTER["rules"]["external"]}
    asked = set()
    for scaler in _of("HorizontalPodAutoscaler").values():
        spec = scaler["spec"]
        target = WORKLOADS[spec["scaleTargetRef"]["name"]]
        assert target["kind"] == spec["scaleTargetRef"]["kind"]
        assert "replicas" not in target["spec"], "an apply would undo what the autoscaler did"
        asked |= {m["external"]["metric"]["name"] for m in spec["metrics"] if "external" in m}
    assert asked == made
    sources = " ".join(
        (ROOT / path).read_text()
        for path in ("mesh/telemetry/metrics.py", "gateway/app.py", "inference/instance.py")
    )
    for rule in ADAPTER["rules"]["external"]:
        series = re.sub(r"_(total|bucket)$", "", rule["seriesQuery"])
        own = series.removeprefix("seedance_inference_")
        assert f'"{series}"' in sources or f'"{own}"' in sources, series
        assert rule["seriesQuery"] in rule["metricsQuery"]


def test_no_service_account_is_given_away() -> None:
    """Nothing runs as root or may become it."""
    for name in KINDS:
        context = _container(name)["securityContext"]
        assert context["runAsNonRoot"]
        assert not context["allowPrivilegeEscalation"]
