"""From a path to a runner and a preparer: the model side's one entry."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from inference.engine.runner import ModelInfo, Runner
from inference.model.backend import Asked, GpuOptions, choose_library, native_threads
from inference.model.config import ModelConfig
from inference.model.cuda_runner import load_cuda
from inference.model.errors import ModelLoadError
from inference.model.gguf_weights import GgufWeights
from inference.model.kv_cache import KvCache, blocks_that_fit, kv_dtype
from inference.model.preparer import HfPreparer
from inference.model.safetensors_weights import SafetensorsWeights
from inference.model.text_files import TextSide, text_of_folder, text_of_gguf
from inference.model.torch_runner import TorchRunner, default_threads
from inference.model.transformer import Transformer, load_transformer
from inference.native.runner import load_native

__all__ = ["ModelLoadError", "load_model"]

log = logging.getLogger(__name__)

# The largest is for GPUs, where FlashAttention 2 reads pages of no other size.
BLOCK_SIZES = (16, 32, 64, 128, 256)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
KV_DTYPES = ("auto", "fp32", "bf16", "fp16")
QUANTIZATIONS = ("auto", "none", "int8", "int4")


def _nobody_hears(_share: float) -> None:
    """Progress that is not asked for."""


def load_model(
    path: Path,
    *,
    name: str,
    aliases: tuple[str, ...] = (),
    context_length: int | None = None,
    block_size: int = 64,
    kv_blocks: int | None = None,
    kv_cache_gib: float = 1.0,
    kv_offload_gib: float = 0.0,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    quantize: str = "auto",
    threads: int = 0,
    cpu_backend: str = "auto",
    native_library: Path | None = None,
    gpu: GpuOptions | None = None,
    progress: Callable[[float], None] = _nobody_hears,
) -> tuple[Runner, HfPreparer]:
    """Load a Hugging Face folder or a GGUF file.

    `context_length` may only shorten what the model was trained for. `kv_blocks` wins over
    `kv_cache_gib` (GiB for keys and values); `kv_offload_gib` is for the CPU tier. `dtype`: `auto`
    is bf16 where the processor multiplies it natively, else fp32, the reference. `kv_cache_dtype` is
    how keys and values are kept; they are computed with in `dtype`. `quantize`: `int8` and `int4`
    make the matrices smaller that have more bits; `none` computes with what the file has; `auto` is
    what the backend needs, int8 for the native step and none else. `threads` 0: `default_threads`,
    `native_threads`. `native_library` is one built ahead. `progress` hears the share loaded,
    0 to 1, and then that of the steps recorded for a GPU, which `gpu` is for.

    Raises `ModelLoadError`, one line with what to do, for what cannot be used.
    """
    _check_options(block_size, dtype, kv_cache_dtype, quantize)
    source, text = _open(path)
    config, device = source.config, _device()
    asked = Asked(device, dtype, kv_cache_dtype, quantize, block_size)
    library = choose_library(cpu_backend, config, asked, native_library)
    compute = torch.bfloat16 if library else _compute_dtype(dtype, device)
    kept = kv_dtype(kv_cache_dtype, compute)
    log.info("keys and values are kept in %s", kept)
    info = ModelInfo(
        name=name,
        aliases=aliases,
        context_length=_context_length(config, context_length),
        vocab_size=config.vocab_size,
        eos_token_ids=config.eos_token_ids | text.eos_token_ids,
        block_size=block_size,
        total_blocks=kv_blocks or blocks_that_fit(config, block_size, kept, kv_cache_gib),
        sliding_window=config.sliding_window,
        cold_blocks=blocks_that_fit(config, block_size, kept, kv_offload_gib),
    )
    preparer = HfPreparer(text.tokenizer, text.template, config.vocab_size)
    if library is not None:
        torch.set_num_threads(1)  # it only samples
        bits, threads = (4 if quantize == "int4" else 8), threads or native_threads()
        return load_native(library, source, info, threads, progress, layer_bits=bits), preparer
    torch.set_num_threads(threads or default_threads())
    smaller = _torch_quantization(quantize, device)
    model = load_transformer(source, compute, device, progress, smaller)
    return _torch_runner(info, model, kept, gpu or GpuOptions(), progress), preparer


def _torch_runner(
    info: ModelInfo,
    model: Transformer,
    kept: torch.dtype,
    gpu: GpuOptions,
    progress: Callable[[float], None],
) -> Runner:
    if model.device.type == "cuda":
        return load_cuda(info, model, kept, gpu, progress)
    blocks, size, cold = info.total_blocks, info.block_size, info.cold_blocks
    return TorchRunner(info, model, KvCache(model.config, blocks, size, kept, model.device, cold))


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _torch_quantization(quantize: str, device: torch.device) -> str:
    if quantize in ("auto", "none"):
        return "none"
    if device.type != "cpu":
        raise ModelLoadError(f"{quantize} is computed on CPUs alone; use --quantize none")
    return quantize


def _check_options(block_size: int, dtype: str, kv_cache_dtype: str, quantize: str) -> None:
    if block_size not in BLOCK_SIZES:
        raise ModelLoadError(f"block size {block_size} is not one of {BLOCK_SIZES}; use 64")
    if dtype not in ("auto", *DTYPES):
        raise ModelLoadError(f"dtype {dtype!r} is not one of auto, {', '.join(DTYPES)}; use auto")
    if kv_cache_dtype not in KV_DTYPES:
        raise ModelLoadError(
            f"KV cache dtype {kv_cache_dtype!r} is not one of {', '.join(KV_DTYPES)}; use auto"
        )
    if quantize not in QUANTIZATIONS:
        raise ModelLoadError(
            f"quantization {quantize!r} is not one of {', '.join(QUANTIZATIONS)}; use auto"
        )


def _open(path: Path) -> tuple[SafetensorsWeights | GgufWeights, TextSide]:
    if path.is_dir():
        return SafetensorsWeights(path), text_of_folder(path)
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelLoadError(
                f"{path} is no model; name a GGUF file (*.gguf) or a Hugging Face folder"
            )
        weights = GgufWeights(path)
        return weights, text_of_gguf(weights.fields)
    raise ModelLoadError(f"{path} does not exist; name a GGUF file or a Hugging Face folder")


def _compute_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype != "auto":
        return DTYPES[dtype]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    # Without the instruction, bf16 is slower than fp32.
    native = torch.backends.mkldnn.is_available() and torch.cpu._is_avx512_bf16_supported()  # noqa: SLF001
    return torch.bfloat16 if native else torch.float32


def _context_length(config: ModelConfig, wanted: int | None) -> int:
    if wanted is None:
        return config.context_length
    if not 0 < wanted <= config.context_length:
        raise ModelLoadError(
            f"context length {wanted} is not from 1 to {config.context_length}, which the model "
            "was trained for; leave it out to use all"
        )
    return wanted
