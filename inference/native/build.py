"""Build the native step with the machine's own C++ compiler, once, into a cache folder.

One library holds the step for every instruction set the compiler knows, and chooses at run time:
so a cache folder may be shared by machines with different CPUs. It is named by what went into it:
sources, flags, and the compiler's version.

`python -m inference.native.build [FOLDER]` builds ahead of time, for an image that will run
without a compiler.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CACHE", "SOURCES", "BuildError", "Compiler", "build", "find_compiler", "main"]

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "src"
CACHE = Path("~/.cache/seedance/native")
LIBRARY_NAME = "seedance_native.so"
KERNELS = "kernels.cpp"
COMPILERS = ("c++", "g++", "clang++")
PROBE_TIMEOUT_S = 30.0
COMPILE_TIMEOUT_S = 300.0
ERROR_LINES_MAX = 3

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
# What `kernels.cpp` is compiled with for each instruction set.
X86_PATHS: Mapping[str, tuple[str, ...]] = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512bf16": (*_AVX512, "-mavx512bf16"),
}
X86_MACHINES = frozenset({"x86_64", "AMD64"})


class BuildError(Exception):
    """Why there is no native step, in one line."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its path, what it says of itself, and the instruction sets it knows."""

    path: str
    version: str
    paths: Mapping[str, tuple[str, ...]]

    def key(self, sources: Path) -> str:
        """A name for what this compiler makes of these sources."""
        digest = hashlib.sha256()
        for part in (
            platform.machine(),
            self.version,
            repr(FLAGS),
            repr(sorted(self.paths.items())),
        ):
            digest.update(part.encode() + b"\0")
        for source in sorted(sources.iterdir()):
            digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
        return digest.hexdigest()[:20]


def _run(command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    # The commands are a compiler's path and flags of our own; nothing comes from a request.
    return subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def _accepts(compiler: str, flags: tuple[str, ...]) -> bool:
    probe = [compiler, *flags, "-E", "-x", "c++", os.devnull, "-o", os.devnull]
    return _run(probe, PROBE_TIMEOUT_S).returncode == 0


def find_compiler() -> Compiler:
    """The first C++ compiler on the path. Raises `BuildError` when there is none that works."""
    path = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if path is None:
        raise BuildError(f"no C++ compiler ({', '.join(COMPILERS)}) on the path")
    try:
        version = _run([path, "--version"], PROBE_TIMEOUT_S).stdout
        candidates = X86_PATHS if platform.machine() in X86_MACHINES else {}
        paths = {name: flags for name, flags in candidates.items() if _accepts(path, flags)}
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{path} does not run: {error}") from error
    return Compiler(path, version, paths)


def build(compiler: Compiler, cache: Path = CACHE, sources: Path = SOURCES) -> Path:
    """The library's path, built if it is not in the cache yet. Raises `BuildError`.

    Processes that start together build once: the others wait. A build that is interrupted leaves
    nothing under the library's name.
    """
    try:
        folder = cache.expanduser() / compiler.key(sources)
    except RuntimeError as error:  # a user without a home, as in some containers
        raise BuildError(f"no folder to build in: {error}") from error
    library = folder / LIBRARY_NAME
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not library.exists():
                log.info("building the native step with %s, once, into %s", compiler.path, folder)
                _compile(compiler, sources, library)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"cannot build in {folder}: {error}") from error
    return library


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, also by a crash
        yield


def _compile(compiler: Compiler, sources: Path, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = []
        for name, source, flags in _units(compiler, sources):
            objects.append(str(Path(scratch) / f"{name}.o"))
            _checked([compiler.path, *FLAGS, *flags, "-c", str(source), "-o", objects[-1]])
        linked = Path(scratch) / LIBRARY_NAME
        _checked([compiler.path, "-shared", "-pthread", *objects, "-o", str(linked)])
        linked.replace(library)


def _units(compiler: Compiler, sources: Path) -> Iterator[tuple[str, Path, tuple[str, ...]]]:
    """Name, source and extra flags of each object file."""
    present = tuple(f"-DSEEDANCE_HAS_{path}" for path in compiler.paths)
    for source in sorted(sources.glob("*.cpp")):
        if source.name != KERNELS:
            yield source.stem, source, present
    for path, flags in {"portable": (), **compiler.paths}.items():
        yield f"kernels_{path}", sources / KERNELS, (f"-DSEEDANCE_PATH={path}", *flags)


def _checked(command: list[str]) -> None:
    done = _run(command, COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()[:ERROR_LINES_MAX]
        raise BuildError(f"{command[0]} failed: {' / '.join(lines)}")


def main() -> int:
    """Build, and print where the library is; 1 when it cannot be built."""
    cache = Path(sys.argv[1]) if len(sys.argv) > 1 else CACHE
    try:
        library = build(find_compiler(), cache)
    except BuildError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{library}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
