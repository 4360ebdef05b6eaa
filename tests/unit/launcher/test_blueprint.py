"""From options to processes."""

from __future__ import annotations

from pathlib import Path

from gateway.server import HTTP_GRACE_S
from launcher.blueprint import ProcessSpec, UpOptions, build
from launcher.environment import mesh_environment
from launcher.ports import free_port
from launcher.supervisor import STOP_GRACE_S


def _specs(tmp_path: Path, **options: object) -> list[ProcessSpec]:
    return build(UpOptions(data=tmp_path, port=free_port(), **options))


def _flag(spec: ProcessSpec, name: str) -> str:
    return spec.argv[spec.argv.index(name) + 1]


def test_the_first_gateway_takes_the_port(tmp_path: Path) -> None:
    """`--port` is the first gateway's; the others take later ones."""
    port = free_port()
    specs = build(UpOptions(data=tmp_path, port=port, engine="script", gateways=3))
    ports = [int(s.address.rsplit(":", 1)[1]) for s in specs if s.kind == "gateway"]
    assert ports[0] == port
    assert ports == sorted(set(ports))


def test_every_gateway_names_all_gateways(tmp_path: Path) -> None:
    """A client of any gateway learns where else it can resume."""
    gateways = [s for s in _specs(tmp_path, engine="script") if s.kind == "gateway"]
    named = {_flag(s, "--gateways") for s in gateways}
    assert named == {",".join(f"ws://{s.address}" for s in gateways)}


def test_all_bind_loopback_and_no_port_twice(tmp_path: Path) -> None:
    """The local mesh is reachable from this machine alone, each process on its own port."""
    specs = _specs(tmp_path, engine="script", instances=3)
    assert all(s.address.startswith("127.0.0.1:") for s in specs)
    assert len({s.address for s in specs}) == len(specs)


def test_a_service_drains_before_it_is_killed() -> None:
    """Ctrl-C leaves each the time to cut off what runs and to write down what it cost."""
    grace = float(mesh_environment({})["SEEDANCE_DRAIN_GRACE_S"])
    assert grace + HTTP_GRACE_S < STOP_GRACE_S


def test_what_others_need_starts_first(tmp_path: Path) -> None:
    """The store is first and the gateways are last."""
    kinds = [s.kind for s in _specs(tmp_path, engine="script", gateways=2, instances=1)]
    assert kinds == ["store", "router", "metering", "inference", "gateway", "gateway"]


def test_a_real_model_goes_to_every_instance(tmp_path: Path) -> None:
    """Path, name and aliases reach each instance."""
    options = {
        "engine": "native",
        "model": Path("m.gguf"),
        "model_name": "m",
        "aliases": ("a", "b"),
    }
    instances = [s for s in _specs(tmp_path, **options) if s.kind == "inference"]
    assert len(instances) == 2
    assert {_flag(s, "--model") for s in instances} == {"m.gguf"}
    assert {_flag(s, "--aliases") for s in instances} == {"a,b"}


def test_local_instances_serve_every_class(tmp_path: Path) -> None:
    """A client may ask for any instance class of a mesh on one machine (§1)."""
    instances = [s for s in _specs(tmp_path, engine="script") if s.kind == "inference"]
    assert {_flag(s, "--instance-class") for s in instances} == {"*"}


def test_workers_go_to_every_gateway(tmp_path: Path) -> None:
    """`--workers` is how many processes each gateway is."""
    gateways = [s for s in _specs(tmp_path, engine="script", workers=3) if s.kind == "gateway"]
    assert {_flag(s, "--workers") for s in gateways} == {"3"}


def test_certificates_reach_who_needs_them(tmp_path: Path) -> None:
    """Those for clients go to gateways, which are probed over TLS; those between services to all of them."""
    tls = (tmp_path / "c.pem", tmp_path / "k.pem")
    mtls = (tmp_path / "s.pem", tmp_path / "s.key", tmp_path / "ca.pem")
    specs = _specs(tmp_path, engine="script", tls=tls, mtls=mtls)
    gateways = [s for s in specs if s.kind == "gateway"]
    assert {s.probe for s in gateways} == {"https"}
    assert {_flag(s, "--tls-key") for s in gateways} == {str(tls[1])}
    assert _flag(gateways[0], "--gateways").startswith("wss://")
    services = [s for s in specs if s.kind != "store"]
    assert {_flag(s, "--mtls-ca") for s in services} == {str(mtls[2])}
    assert not [s for s in services if s.kind != "gateway" and "--tls-cert" in s.argv]
