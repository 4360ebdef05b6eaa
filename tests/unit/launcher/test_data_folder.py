"""The folder of a mesh on this machine."""

from __future__ import annotations

from pathlib import Path

from launcher.blueprint import UpOptions, build
from launcher.data_folder import RECEIPT_KEY, make_data_folder
from launcher.ports import free_port


def test_what_processes_are_told_to_find_is_there(tmp_path: Path) -> None:
    """Every process's log has its folder, and the gateways' key is there, for its owner alone."""
    data = tmp_path / "new" / "mesh"
    make_data_folder(data)
    for spec in build(UpOptions(data=data, port=free_port(), engine="script")):
        assert spec.log.parent.is_dir()
        if "--receipt-key" in spec.argv:
            key = Path(spec.argv[spec.argv.index("--receipt-key") + 1])
            assert key.stat().st_mode & 0o777 == 0o600


def test_a_second_start_keeps_the_key(tmp_path: Path) -> None:
    """Receipts of before are signed with the key of before."""
    make_data_folder(tmp_path)
    key = (tmp_path / RECEIPT_KEY).read_bytes()
    make_data_folder(tmp_path)
    assert (tmp_path / RECEIPT_KEY).read_bytes() == key
