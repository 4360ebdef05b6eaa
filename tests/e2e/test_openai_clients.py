"""The official clients' examples, unchanged, against a running mesh: Python, LangChain, JavaScript."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.mesh import LocalMesh, local_mesh
from tests.support.scripts import SPLIT_WORDS, script

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
QUESTION = script(SPLIT_WORDS, dt_ms=1)
TEXT = b"".join(SPLIT_WORDS).decode()
INSTALL_S = 60


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalMesh]:
    """A small mesh that says the text that it is asked for."""
    folder = tmp_path_factory.mktemp("openai")
    with local_mesh(folder, "--instances", "1", "--gateways", "1") as running:
        yield running


def _answer(mesh: LocalMesh, *argv: str | Path) -> Sequence[str]:
    """What the example prints, and what it says of the cost."""
    env = os.environ | {"OPENAI_BASE_URL": f"{mesh.url}/v1", "OPENAI_API_KEY": "local"}
    done = subprocess.run(
        [*argv, QUESTION], env=env, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n"), done.stderr.split("\n")[-2]


def _said(mesh: LocalMesh, *argv: str | Path) -> None:
    text, cost = _answer(mesh, *argv)
    assert text == TEXT
    assert cost.startswith(f"{len(SPLIT_WORDS)} tokens of ")


def test_the_official_python_client(mesh: LocalMesh) -> None:
    """`examples/openai_client.py` prints the answer exactly, and what it cost."""
    _said(mesh, sys.executable, EXAMPLES / "openai_client.py")


@pytest.mark.skipif(
    importlib.util.find_spec("langchain_openai") is None, reason="langchain-openai is not installed"
)
def test_langchain(mesh: LocalMesh) -> None:
    """`examples/langchain_chat.py`: streamed and in one piece."""
    _said(mesh, sys.executable, EXAMPLES / "langchain_chat.py")


@pytest.fixture(scope="module")
def javascript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JavaScript example beside the official client from npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not installed")
    folder = tmp_path_factory.mktemp("npm")
    for name in ("package.json", "openai_client.mjs"):
        shutil.copy(EXAMPLES / name, folder)
    argv = [npm, "install", "--prefer-offline", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        pytest.skip(f"npm could not fetch the client: {done.stderr.strip()[:200]}")
    return folder


def test_the_official_javascript_client(mesh: LocalMesh, javascript: Path) -> None:
    """`examples/openai_client.mjs` on Node."""
    _said(mesh, "node", javascript / "openai_client.mjs")
