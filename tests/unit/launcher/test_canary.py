"""`seedance canary`: whom it asks, and what it makes of the counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.canary import p99_ms, router_address
from launcher.meshfile import RunningProcess, write_mesh
from mesh.canary import Tally


def test_the_local_mesh_unless_told_otherwise(tmp_path: Path) -> None:
    """The router of the mesh that runs on the folder; `--router` goes before it."""
    own = 1
    write_mesh(
        tmp_path,
        [
            RunningProcess("gateway", "gateway-0", own, "127.0.0.1:1", "log"),
            RunningProcess("router", "router-0", own, "127.0.0.1:2", "log"),
        ],
    )
    assert router_address("", tmp_path) == "127.0.0.1:2"
    assert router_address("elsewhere:7070", tmp_path) == "elsewhere:7070"


def test_without_a_mesh_it_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the folder and the flag, and the exit code for misuse."""
    with pytest.raises(SystemExit) as ended:
        router_address("", tmp_path)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert str(tmp_path) in said
    assert "--router" in said


def test_p99_is_within_a_step() -> None:
    """Of a hundred first tokens the second-longest, at most 9 % too long; of none there is none."""
    tally = Tally()
    assert p99_ms(tally) is None
    for n in range(100):
        tally.first_token(0.1 if n < 98 else 0.4 * (n - 97))
    found = p99_ms(tally)
    assert found is not None
    assert 400 <= found <= 400 * 2 ** (1 / 8)
