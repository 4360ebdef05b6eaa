"""The folder that a mesh on this machine keeps everything in (`--data`)."""

from __future__ import annotations

from pathlib import Path

from gateway.receipts import make_key_file

__all__ = ["LOG_FOLDER", "RECEIPT_KEY", "STORE_FOLDER", "make_data_folder"]

LOG_FOLDER = "logs"
STORE_FOLDER = "store"
# Made at the mesh's first start; all its gateways sign receipts with it.
RECEIPT_KEY = "receipt-key.pem"


def make_data_folder(data: Path) -> None:
    """Make what the processes expect to find there; what exists stays. Raises `OSError`."""
    for folder in (data / LOG_FOLDER, data / STORE_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    make_key_file(data / RECEIPT_KEY)
