"""Which code computes the steps: the native library where it can, torch everywhere else.

| `--cpu-backend` | what happens |
| --- | --- |
| `auto` | native when nothing speaks against it (below), else torch; the log says which and why |
| `native` | native, or an error that says what speaks against it |
| `torch` | torch |

Against the native step speak: a GPU; a `dtype` of one's own (it keeps the file's quantization and
computes in int8 products with fp32 sums); weights without quantization (`--quantize none`); keys and values in anything but bf16; a shape that it has
no tiles for; no compiler and no built library; a CPU without vector instructions that it knows.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from inference.model.config import ModelConfig
from inference.model.errors import ModelLoadError
from inference.model.torch_runner import physical_cores
from inference.native.library import Library, load
from inference.native.runner import why_unsupported

__all__ = ["CPU_BACKENDS", "Asked", "GpuOptions", "choose_library", "native_threads"]

log = logging.getLogger(__name__)

CPU_BACKENDS = ("auto", "native", "torch")
_PLAIN_PATH = "portable"


def native_threads() -> int:
    """Threads of the native step when nobody says: every physical core.

    Its threads step aside by themselves where the cores are crowded, so none is left out.
    """
    return physical_cores()


@dataclass(frozen=True, slots=True)
class Asked:
    """Options that decide who can compute; see `inference.model.load.load_model`."""

    device: torch.device
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantize: str = "auto"
    block_size: int = 64


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Options of a GPU alone.

    Decodes of up to `rows_max` sequences are recorded. `torch_compile` fuses what it can; where it
    fails the model computes without it, or, without `compile_fallback`, not at all.
    """

    rows_max: int = 64
    torch_compile: bool = False
    compile_fallback: bool = True


def choose_library(
    wanted: str, config: ModelConfig, asked: Asked, built: Path | None = None
) -> Library | None:
    """The library to compute with (`built` ahead, or built now); None: torch computes.

    Raises `ModelLoadError` when `native` is asked for and something speaks against it.
    """
    if wanted not in CPU_BACKENDS:
        raise ModelLoadError(
            f"CPU backend {wanted!r} is not one of {', '.join(CPU_BACKENDS)}; use auto"
        )
    if wanted == "torch":
        return None
    reason = _against(config, asked)
    library = load(built) if reason is None else None
    if reason is None and library is None:
        reason = "the library is not there and cannot be built (the log says why)"
    elif library is not None and wanted == "auto" and library.fastest_path == _PLAIN_PATH:
        library, reason = None, "this CPU has no vector instructions that it knows"
    if reason is not None and wanted == "native":
        raise ModelLoadError(f"the native step cannot serve this model: {reason}; use auto")
    log.info("steps are computed by %s", "the native library" if library else f"torch: {reason}")
    return library


def _against(config: ModelConfig, asked: Asked) -> str | None:
    kept = asked.kv_cache_dtype
    reasons = {
        "a GPU computes": asked.device.type != "cpu",
        f"dtype {asked.dtype} is asked for": asked.dtype != "auto",
        "weights are asked for without quantization": asked.quantize == "none",
        f"keys and values are asked for in {kept}": kept not in ("auto", "bf16"),
        "it is built for POSIX systems": os.name != "posix",
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return found[0] if found else why_unsupported(config, asked.block_size)
