"""A GGUF file as a folder that `transformers serve` takes: `python -m … FILE FOLDER`.

The weights are the file's own values in bf16, the form in which transformers is fastest on a CPU that has it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

__all__ = ["main"]


def main() -> None:
    """Read with transformers' own reader, write with its own writer."""
    path, folder = Path(sys.argv[1]), sys.argv[2]
    config = LlamaConfig.from_dict(load_gguf_checkpoint(str(path))["config"])
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config)
    read = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    model.load_state_dict(read["tensors"], strict=False)
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
