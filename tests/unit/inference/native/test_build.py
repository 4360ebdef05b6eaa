"""The library is built once per compiler and sources, or not at all, and says why."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from inference.native import library
from inference.native.build import SOURCES, BuildError, Compiler, build, find_compiler

# A compiler in name: it counts its calls, and leaves a file where one is asked for.
STUB = """#!/bin/sh
echo call >> "{log}"
while [ $# -gt 0 ]; do
    if [ "$1" = "-o" ]; then echo built > "$2"; fi
    shift
done
exit {status}
"""


def _stub(folder: Path, status: int = 0) -> Compiler:
    script = folder / "compiler"
    script.write_text(STUB.format(log=folder / "calls", status=status))
    script.chmod(0o755)
    return Compiler(str(script), "stub 1.0", {})


def _calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


def test_without_a_compiler_there_is_no_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`load` returns None and logs the reason."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        find_compiler()
    with caplog.at_level(logging.WARNING):
        assert library.load(cache=tmp_path) is None
    assert "no C++ compiler" in caplog.text


def test_a_second_build_takes_the_first_one_s(tmp_path: Path) -> None:
    """What is in the cache is not built again."""
    compiler = _stub(tmp_path)
    first = build(compiler, tmp_path / "cache")
    calls = _calls(tmp_path)
    assert build(compiler, tmp_path / "cache") == first
    assert _calls(tmp_path) == calls


def test_builds_at_the_same_time_are_one(tmp_path: Path) -> None:
    """Who comes second waits for the first and compiles nothing."""
    compiler = _stub(tmp_path)
    threads = [
        threading.Thread(target=build, args=(compiler, tmp_path / "cache")) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One call for each source, the kernels once for the portable path, and one to link.
    assert _calls(tmp_path) == len(list(SOURCES.glob("*.cpp"))) + 1


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """No library stands under its name after a failure, and the next try builds again."""
    with pytest.raises(BuildError, match="failed"):
        build(_stub(tmp_path, status=1), tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.so"))
    assert build(_stub(tmp_path), tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A file where the folder should be ends in the one error that callers know."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(BuildError, match="cannot build in"):
        build(_stub(tmp_path), tmp_path / "cache")


def test_the_key_names_what_went_in(tmp_path: Path) -> None:
    """Other sources, another compiler version or other flags are another library."""
    sources = tmp_path / "src"
    shutil.copytree(SOURCES, sources)
    compiler = Compiler("cc", "1", {})
    keys = {
        compiler.key(sources),
        replace(compiler, version="2").key(sources),
        replace(compiler, paths={"avx2": ("-mavx2",)}).key(sources),
    }
    (sources / "layout.h").write_text("// changed")
    keys.add(compiler.key(sources))
    assert len(keys) == 4


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("source", sorted(SOURCES.glob("*.cpp")), ids=lambda path: path.name)
def test_sources_compile_without_warnings(source: Path) -> None:
    """The compiler finds nothing to say about the portable build."""
    command = ["c++", "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    command += ["-Wno-unused-function", "-DSEEDANCE_PATH=portable", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(SOURCES.iterdir()), ids=lambda path: path.name)
def test_sizes(path: Path) -> None:
    """C++ keeps Python's limits: files to 400 lines, functions to 60, lines to 100 characters."""
    lines = path.read_text().splitlines()
    assert len(lines) <= 400
    assert max(map(len, lines)) <= 100
    start = 0
    for number, line in enumerate(lines):
        if line == "}":
            assert number - start < 60, f"{path.name}:{start + 1}"
        elif line and not line[0].isspace():
            start = number
