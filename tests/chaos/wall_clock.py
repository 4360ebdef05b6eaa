"""Wall clocks that can be set, one for each process of the mesh.

A small library is preloaded into every process (`wall_clock.c`); no service knows of it. What is
started again has a right clock, as a host that was rebooted.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

__all__ = ["WallClocks"]

SOURCE = Path(__file__).with_name("wall_clock.c")
NS_PER_S = 1_000_000_000


class WallClocks:
    """Builds the library in `folder`. Raises `FileNotFoundError` where there is no C compiler."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc")
        if compiler is None:
            raise FileNotFoundError("no C compiler (cc): wall clocks cannot be stepped")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        library = folder / "wall_clock.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
        subprocess.run(command, check=True)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCKS": str(folder)}

    def step(self, pid: int, seconds: float) -> None:
        """Set a process's wall clock forward, or back."""
        with (self._folder / str(pid)).open("r+b") as file:
            [offset] = struct.unpack("q", file.read(8))
            file.seek(0)
            file.write(struct.pack("q", offset + int(seconds * NS_PER_S)))
