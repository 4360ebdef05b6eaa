"""The native library's C interface, typed."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference.engine.plan import BlockCopy
from inference.native.build import CACHE, BuildError, build, find_compiler
from inference.native.weights import Levels

__all__ = ["Library", "ModelShape", "NativeModel", "NormSlot", "Slot", "load"]

log = logging.getLogger(__name__)

PATHS = ("avx512bf16", "avx512", "avx2", "portable")
OUT_OF_MEMORY = 1

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


class Slot(IntEnum):
    """Which matrix of the model; the order is that of `model.h`."""

    QKV = 0
    OUTPUT = 1
    GATE_UP = 2
    DOWN = 3
    EMBEDDING = 4
    HEAD = 5


class NormSlot(IntEnum):
    """Which norm's weight; the order is that of `model.h`."""

    ATTENTION = 0
    MLP = 1
    FINAL = 2
    QUERY = 3
    KEY = 4


class ModelShape(ctypes.Structure):
    """Sizes of a model and of its cache; the fields are those of `model.h`."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "layers",
                "hidden",
                "mlp",
                "heads",
                "kv_heads",
                "head_dim",
                "vocab",
                "block_size",
                "blocks",
                "context",
            )
        ),
        ("norm_eps", ctypes.c_float),
        ("tied_head", ctypes.c_int32),
    )


class _StepInput(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int32),
        ("samplers", ctypes.c_int32),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "token_ids",
                "positions",
                "tables",
                "table_starts",
                "sampled",
                "logits",
                "greedy",
            )
        ),
    )


class Library:
    """The library, opened. Calls release the interpreter's lock while they run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._c = ctypes.CDLL(str(path))
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        self._declare("fastest_path", ctypes.c_char_p)
        self._declare("has_path", integer, ctypes.c_char_p)
        self._declare("create", pointer, pointer, ctypes.c_char_p, integer)
        self._declare("destroy", None, pointer)
        self._declare("set_matrix", integer, pointer, *[integer] * 5, *[pointer] * 4)
        self._declare("set_norm", integer, pointer, integer, integer, pointer)
        self._declare("set_window", integer, pointer, integer, integer)
        self._declare("set_frequencies", integer, pointer, pointer)
        self._declare("step", integer, pointer, pointer)
        self._declare("copy_block", None, pointer, integer, pointer, integer)

    def _declare(self, name: str, result: Any, *arguments: Any) -> None:
        function = self.function(name)
        function.restype = result
        function.argtypes = arguments

    def function(self, name: str) -> Any:
        """The C function `seedance_<name>`."""
        return getattr(self._c, f"seedance_{name}")

    @property
    def fastest_path(self) -> str:
        """The fastest instruction set of this machine."""
        name: bytes = self.function("fastest_path")()
        return name.decode()

    def paths(self) -> tuple[str, ...]:
        """Every instruction set that was built and runs here, fastest first."""
        return tuple(path for path in PATHS if self.function("has_path")(path.encode()))


class NativeModel:
    """A model in the library: first filled with weights, then stepped by one thread at a time.

    Raises `MemoryError` when the machine has not enough memory (here and in every method).
    """

    def __init__(
        self, library: Library, shape: ModelShape, path: str, threads: int, cold_blocks: int = 0
    ) -> None:
        self.shape = shape
        self.path = path
        self.threads = threads
        self._function: Callable[[str], Any] = library.function
        self._model = self._function("create")(ctypes.byref(shape), path.encode(), threads)
        if not self._model:
            raise MemoryError(f"no memory or threads for the model on {path}")
        # A block's pages are neighbours: two bf16 numbers, a key's and a value's, in each word.
        words = shape.layers * shape.kv_heads * shape.block_size * shape.head_dim
        self._cold = np.empty((cold_blocks, words), np.uint32)

    def set_matrix(self, slot: Slot, layer: int, levels: Levels, bias: Floats | None) -> None:
        """Pack a matrix; `layer` is 0 for those that stand outside the layers."""
        rows, columns = levels.levels.shape
        self._call(
            "set_matrix",
            int(slot),
            layer,
            levels.bits,
            rows,
            columns,
            _address(levels.levels),
            _address(levels.scales),
            _address(levels.minima),
            None if bias is None else _address(bias),
        )

    def set_norm(self, slot: NormSlot, layer: int, values: Floats) -> None:
        """Set a norm's weight [hidden]; those of queries and keys [head_dim]."""
        self._call("set_norm", int(slot), layer, _address(values))

    def set_window(self, layer: int, window: int) -> None:
        """Let the layer's tokens see `window` positions, their own counted; all, when never set."""
        self._call("set_window", layer, window)

    def set_frequencies(self, values: Floats) -> None:
        """Set the radians per position of each rotated pair [head_dim / 2]."""
        self._call("set_frequencies", _address(values))

    def copy(self, copies: list[BlockCopy]) -> None:
        """Move blocks to the CPU tier and back, in order."""
        for copy in copies:
            cold = _address(self._cold[copy.slot])
            self._function("copy_block")(self._model, copy.block, cold, int(copy.save))

    def step(
        self,
        *,
        token_ids: Ints,
        positions: Ints,
        tables: Ints,
        table_starts: Ints,
        sampled: Ints,
        logits: Floats,
        greedy: Ints,
    ) -> Callable[[], None]:
        """What computes a ragged batch's tokens; see `StepInput` in `model.h` for the columns.

        A call fills `logits` [len(sampled), vocab] and `greedy` [len(sampled)], the likeliest ids.
        """
        columns = (token_ids, positions, tables, table_starts, sampled, logits, greedy)
        given = _StepInput(len(token_ids), len(sampled), *map(_address, columns))

        def step(_kept: object = columns) -> None:  # their memory is read by each call
            self._call("step", ctypes.byref(given))

        return step

    def _call(self, name: str, *arguments: Any) -> None:
        if self._function(name)(self._model, *arguments) == OUT_OF_MEMORY:
            raise MemoryError(f"the native step has no memory ({name})")

    def close(self) -> None:
        """Give back memory and threads; nothing may be called afterwards."""
        if self._model:
            self._function("destroy")(self._model)
            self._model = None


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous  # noqa: S101
    return array.ctypes.data


def load(built: Path | None = None, cache: Path = CACHE) -> Library | None:
    """The library, `built` ahead or built now; None, with the reason in the log, where it cannot be had."""
    try:
        return Library(built or build(find_compiler(), cache))
    except (BuildError, OSError) as error:
        log.warning("no native step: %s", error)
        return None
