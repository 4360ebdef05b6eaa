"""What Hugging Face transformers computes for the same weights: the reference of equality tests."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import torch
from torch import Tensor

__all__ = ["greedy_ids", "load_folder", "load_gguf", "logits"]


def load_gguf(path: Path) -> Any:
    """A GGUF file through transformers' own reader (its one-call way wants a further package).

    It reads the file twice and makes the table of tensors' names anew for each module: once is enough.
    """
    with (
        warnings.catch_warnings(),
        patch("gguf.GGUFReader", cache(gguf.GGUFReader)),
        patch("gguf.get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        warnings.simplefilter("ignore")
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
        from transformers.utils import logging

        logging.disable_progress_bar()
        config = LlamaConfig.from_dict(load_gguf_checkpoint(str(path))["config"])
        model = LlamaForCausalLM(config).eval()
        read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(read["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected, unexpected
    model.tie_weights()
    return model


def load_folder(path: Path) -> Any:
    """A Hugging Face folder in fp32."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.inference_mode()
def logits(model: Any, ids: list[int]) -> Tensor:
    """Logits of every position, [tokens, vocab]."""
    return model(torch.tensor([ids])).logits[0]


def greedy_ids(model: Any, ids: list[int], count: int, eos: frozenset[int]) -> list[int]:
    """The greedy answer, ended by a token of `eos` or after `count` tokens."""
    from transformers import GenerationConfig

    # What is unset in a call's settings is taken from the model's: end there, too, where we say.
    model.generation_config.eos_token_id = sorted(eos) or None
    config = GenerationConfig(do_sample=False, max_new_tokens=count, pad_token_id=0)
    prompt = torch.tensor([ids])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model.generate(
            prompt, generation_config=config, attention_mask=torch.ones_like(prompt)
        )
    return found[0, len(ids) :].tolist()
