"""Weights of a Hugging Face folder: `config.json` beside one or several `*.safetensors`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from inference.model.config import ModelConfig, config_from_hf
from inference.model.errors import ModelLoadError
from inference.model.weights import check_shape, interleave_pairs

__all__ = ["SafetensorsWeights", "read_json"]

WHOLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
ROTATED = ("q_proj", "k_proj", "q_norm", "k_norm")


def read_json(path: Path) -> dict[str, Any]:
    """An object out of a JSON file; `ModelLoadError` when it is missing or cut short."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"{path} is missing; download the model again") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is damaged; download the model again") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} is not a JSON object; download the model again")
    return value


class SafetensorsWeights:
    """Tensors by name over all of a folder's shards."""

    def __init__(self, folder: Path) -> None:
        raw = read_json(folder / "config.json")
        generation_path = folder / "generation_config.json"
        generation = read_json(generation_path) if generation_path.exists() else {}
        try:
            self.config: ModelConfig = config_from_hf(raw, generation)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelLoadError(
                f"{folder / 'config.json'} lacks or misstates {error}; download the model again"
            ) from error
        # safe_open's handles are untyped; each is a memory map that lives as long as this object.
        self._home: dict[str, Any] = {}
        for shard in _shards(folder):
            self._open(shard)

    def _open(self, path: Path) -> None:
        try:
            shard = safe_open(str(path), framework="pt")
        except FileNotFoundError as error:
            raise ModelLoadError(f"{path} is missing; download the model again") from error
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(
                f"{path} is damaged or half-downloaded; delete it and download it again"
            ) from error
        self._home.update(dict.fromkeys(shard.keys(), shard))

    def has(self, name: str) -> bool:
        """Whether any shard holds the tensor."""
        return name in self._home

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor as the file has it, what makes queries and keys interleaved."""
        if name not in self._home:
            raise ModelLoadError(f"tensor {name} is missing; download the model again")
        tensor: torch.Tensor = self._home[name].get_tensor(name)
        check_shape(self.config, name, tuple(tensor.shape))
        if any(part in name for part in ROTATED):
            tensor = interleave_pairs(tensor, self.config.head_dim)
        return tensor


def _shards(folder: Path) -> list[Path]:
    index = folder / INDEX_NAME
    if index.exists():
        names = read_json(index).get("weight_map")
        # Names of files in this folder and nowhere else.
        if not (isinstance(names, dict) and all(_is_plain(name) for name in names.values())):
            raise ModelLoadError(f"{index} has no valid weight_map; download the model again")
        return sorted({folder / name for name in names.values()})
    whole = folder / WHOLE_NAME
    found = [whole] if whole.exists() else sorted(folder.glob("*.safetensors"))
    if not found:
        raise ModelLoadError(
            f"{folder} holds no *.safetensors; download the model again (PyTorch's *.bin files "
            "are not read)"
        )
    return found


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name
