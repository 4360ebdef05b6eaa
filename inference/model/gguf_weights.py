"""Weights of a GGUF file, dequantized. Format: the GGUF specification of the ggml project."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize

from inference.model.config import ModelConfig, config_from_gguf
from inference.model.errors import ModelLoadError
from inference.model.weights import check_shape, interleave_pairs

__all__ = ["GgufWeights"]

_TOP = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
ROPE_DIVISORS = "rope_freqs.weight"


class GgufWeights:
    """Tensors of one GGUF file, by Hugging Face's names; `fields` is the file's metadata."""

    def __init__(self, path: Path) -> None:
        try:
            reader = GGUFReader(str(path))
            self.fields: Mapping[str, Any] = {
                key: field.contents() for key, field in reader.fields.items()
            }
        # The reader indexes a memory map: a file cut short fails wherever the cut happens to be.
        except (OSError, ValueError, IndexError, KeyError, UnicodeDecodeError) as error:
            raise _damaged(path) from error
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        try:
            self.config: ModelConfig = config_from_gguf(
                self.fields,
                tied_head="output.weight" not in self._tensors,
                rope_divisors=self._rope_divisors(),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ModelLoadError(f"{path} lacks or misstates {error}; use another file") from error

    def _rope_divisors(self) -> tuple[float, ...] | None:
        tensor = self._tensors.get(ROPE_DIVISORS)
        return tuple(float(value) for value in tensor.data) if tensor is not None else None

    def has(self, name: str) -> bool:
        """Whether the file holds the tensor."""
        return _gguf_name(name) in self._tensors

    def stored(self, name: str) -> tuple[str, torch.Tensor]:
        """A matrix as the file keeps it: its quantization's name, and bytes [out, bytes of a row].

        Rows stand in the order of `tensor`. Raises `ModelLoadError` when it is missing.
        """
        tensor = self._tensor(name)
        data = np.array(tensor.data)  # a copy: torch takes no read-only memory map
        rows = torch.from_numpy(data.view(np.uint8).reshape(data.shape[0], -1))
        return tensor.tensor_type.name, self._in_order(name, rows)

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in fp32, what makes queries and keys interleaved."""
        tensor = self._tensor(name)
        try:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"quantization {tensor.tensor_type.name} of {self._path} is not supported; use a "
                "Q4, Q5, Q6, Q8, F16 or BF16 file"
            ) from error
        return self._in_order(name, torch.from_numpy(np.ascontiguousarray(values)))

    def _tensor(self, name: str) -> Any:
        tensor = self._tensors.get(_gguf_name(name))
        if tensor is None:
            raise ModelLoadError(f"tensor {name} is missing in {self._path}; use another file")
        # GGUF names the columns first.
        check_shape(self.config, name, tuple(int(size) for size in reversed(tensor.shape)))
        return tensor

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        # llama files have their queries and keys interleaved already, others as Hugging Face has.
        if self.config.architecture != "llama" and re.search(r"\.[qk]_(proj|norm)\.", name):
            return interleave_pairs(rows, self.config.head_dim)
        return rows


def _gguf_name(name: str) -> str:
    layer = _LAYER_NAME.fullmatch(name)
    if layer:
        return f"blk.{layer[1]}.{_LAYER[layer[2]]}.{layer[3]}"
    stem, _, kind = name.rpartition(".")
    return f"{_TOP[stem]}.{kind}"


def _damaged(path: Path) -> ModelLoadError:
    return ModelLoadError(
        f"{path} is damaged or half-downloaded; delete it and download it again "
        "(`seedance model pull` for the default model)"
    )
