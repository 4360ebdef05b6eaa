"""A whole mesh on certificates: TLS to its clients, mutual TLS between its services."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path

import grpc
import pytest

from seedance import SeedanceClient
from seedance.v2 import inference_pb2, inference_pb2_grpc
from tests.support.certificates import Authority
from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import SPLIT_WORDS, script_messages
from tests.support.waiting import SURELY_S, wait_until_sync

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

REPEAT = 40
TEXT = (b"".join(SPLIT_WORDS) * REPEAT).decode()


def _usage(mesh: LocalMesh, tls: ssl.SSLContext) -> int:
    with urllib.request.urlopen(f"{mesh.url}/v1/usage", timeout=SURELY_S, context=tls) as reply:
        return json.load(reply)["total"]["completion_tokens"]


def test_an_encrypted_mesh_answers_and_lets_no_stranger_in(tmp_path: Path) -> None:
    """A chat survives a killed gateway, is billed once, and a plain caller reaches no service."""
    authority = Authority(tmp_path)
    public, service = authority.issue("public"), authority.issue("service")
    flags = ["--tls-cert", public.certificate, "--tls-key", public.key]
    flags += ["--mtls-cert", service.certificate, "--mtls-key", service.key]
    flags += ["--mtls-ca", authority.file]
    tls = ssl.create_default_context(cafile=authority.file)
    with local_mesh(tmp_path / "mesh", *flags) as mesh:
        assert mesh.url.startswith("https://")
        text = ""
        with SeedanceClient(mesh.url, ca_cert=authority.file) as client:
            stream = client.chat(messages=script_messages(SPLIT_WORDS, dt_ms=5, repeat=REPEAT))
            for number, chunk in enumerate(stream):
                text += chunk.delta
                if number == 20:
                    mesh.kill("gateway-0")
        assert text == TEXT
        wait_until_sync(lambda: mesh.processes("gateway")[1:], within_s=20)
        billed = len(SPLIT_WORDS) * REPEAT
        wait_until_sync(lambda: _answered(mesh, tls) == billed, within_s=30)
        with grpc.insecure_channel(mesh.named("inference-0").address) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.Describe(inference_pb2.DescribeRequest(), timeout=SURELY_S)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


def _answered(mesh: LocalMesh, tls: ssl.SSLContext) -> int | None:
    """The usage, None while the gateway that was killed is not back."""
    try:
        return _usage(mesh, tls)
    except OSError:
        return None
