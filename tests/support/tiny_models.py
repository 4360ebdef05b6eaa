"""Tiny models with random weights, written as the files that a loader reads."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from inference.model.token_bytes import byte_alphabet
from tests.support.k_quants import pack_q4_k, pack_q6_k

__all__ = [
    "CONTROL_TOKENS",
    "LLAMA",
    "LLAMA3_ROPE",
    "MISTRAL",
    "QWEN2",
    "QWEN3",
    "TEMPLATE",
    "kept_weights",
    "tiny_tokenizer",
    "tiny_vocabulary",
    "tiny_weights",
    "write_folder",
    "write_gguf",
]

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "t"), ("Ġt", "he"), ("1", "2")]
TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_SIZES: dict[str, Any] = {
    "vocab_size": 288,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
LLAMA = _SIZES | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
QWEN2 = _SIZES | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
}
MISTRAL = LLAMA | {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "head_dim": 12,
    "sliding_window": 24,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_PACKERS = {
    gguf.GGMLQuantizationType.Q4_K: pack_q4_k,
    gguf.GGMLQuantizationType.Q6_K: pack_q6_k,
}
_GGUF_LAYER = {
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


def tiny_vocabulary() -> list[str]:
    """Control tokens, the 256 bytes, what the merges make."""
    merged = [left + right for left, right in MERGES]
    return [*CONTROL_TOKENS, *sorted(byte_alphabet()), *merged]


def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE: any text goes through it."""
    vocabulary = {token: index for index, token in enumerate(tiny_vocabulary())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    return tokenizer


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights under Hugging Face's names, large enough that tokens differ clearly."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.2

    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    weights = {
        "model.embed_tokens.weight": random(config["vocab_size"], hidden),
        "model.norm.weight": 1 + random(hidden),
    }
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = random(config["vocab_size"], hidden)
    for index in range(config["num_hidden_layers"]):
        root = f"model.layers.{index}"
        for part, size in (("q", query), ("k", kv), ("v", kv)):
            weights[f"{root}.self_attn.{part}_proj.weight"] = random(size, hidden)
            if config["model_type"] == "qwen2":
                weights[f"{root}.self_attn.{part}_proj.bias"] = random(size)
            if config["model_type"] == "qwen3" and part in "qk":
                weights[f"{root}.self_attn.{part}_norm.weight"] = 1 + random(config["head_dim"])
        weights[f"{root}.self_attn.o_proj.weight"] = random(hidden, query)
        weights[f"{root}.mlp.gate_proj.weight"] = random(mlp, hidden)
        weights[f"{root}.mlp.up_proj.weight"] = random(mlp, hidden)
        weights[f"{root}.mlp.down_proj.weight"] = random(hidden, mlp)
        weights[f"{root}.input_layernorm.weight"] = 1 + random(hidden)
        weights[f"{root}.post_attention_layernorm.weight"] = 1 + random(hidden)
    return weights


def kept_weights(
    config: dict[str, Any], quantization: gguf.GGMLQuantizationType, seed: int = 0
) -> dict[str, torch.Tensor]:
    """The same weights with what `quantization` leaves of the matrices."""
    return {
        name: tensor if tensor.dim() == 1 else torch.from_numpy(_pack(tensor, quantization)[1])
        for name, tensor in tiny_weights(config, seed).items()
    }


def _pack(
    tensor: torch.Tensor, quantization: gguf.GGMLQuantizationType
) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as a GGUF file keeps it, and its values."""
    if quantization in _PACKERS:
        return _PACKERS[quantization](tensor.numpy())
    packed = gguf.quants.quantize(tensor.numpy(), quantization)
    return packed, gguf.quants.dequantize(packed, quantization)


def write_folder(
    folder: Path,
    config: dict[str, Any],
    *,
    shards: int = 1,
    seed: int = 0,
    weights: dict[str, torch.Tensor] | None = None,
) -> Path:
    """A Hugging Face folder, its weights in one file or in several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    tiny_tokenizer().save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    weights = weights or tiny_weights(config, seed)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    home = {name: f"model-{i % shards + 1:05}.safetensors" for i, name in enumerate(weights)}
    for shard in sorted(set(home.values())):
        part = {name: weights[name] for name in weights if home[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": home})
    )
    return folder


def write_gguf(
    path: Path,
    config: dict[str, Any],
    *,
    seed: int = 0,
    pre: str = "gpt-2",
    quantization: gguf.GGMLQuantizationType | None = None,
) -> Path:
    """A GGUF file of the same model, laid out as the ggml project's converter does.

    With `quantization` its matrices are quantized, which wants sizes that are multiples of its
    blocks (32, for K-quantizations 256).
    """
    name = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, name)
    _add_sizes(writer, config)
    _add_rope(writer, config)
    _add_tokenizer(writer, config["vocab_size"], pre)
    for hf_name, tensor in tiny_weights(config, seed).items():
        values = tensor
        if name == "llama" and ("q_proj" in hf_name or "k_proj" in hf_name):
            values = _interleaved(tensor, config["head_dim"])
        if quantization is None or values.dim() == 1:
            writer.add_tensor(_gguf_name(hf_name), values.numpy())
        else:
            packed, _ = _pack(values, quantization)
            writer.add_tensor(_gguf_name(hf_name), packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def _add_rope(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """Linear scaling is metadata, Llama 3's a tensor of divisors."""
    writer.add_rope_freq_base(config["rope_theta"])
    scaling = config.get("rope_scaling", {})
    if scaling.get("type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_freqs(config, scaling))


def _rope_freqs(config: dict[str, Any], scaling: dict[str, Any]) -> np.ndarray:
    """Short waves as they are, long ones slowed down, a blend between."""
    trained = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    divisors = []
    for pair in range(0, config["head_dim"], 2):
        wave = 2 * math.pi * config["rope_theta"] ** (pair / config["head_dim"])
        if wave < trained / high:
            divisors.append(1.0)
        elif wave > trained / low:
            divisors.append(scaling["factor"])
        else:
            share = (trained / wave - low) / (high - low)
            divisors.append(1 / ((1 - share) / scaling["factor"] + share))
    return np.array(divisors, np.float32)


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int, pre: str) -> None:
    tokens = tiny_vocabulary()
    unused = [f"[unused{index}]" for index in range(vocab_size - len(tokens))]
    control, normal, spare = 3, 1, 5
    kinds = [control] * len(CONTROL_TOKENS) + [normal] * (len(tokens) - len(CONTROL_TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*tokens, *unused])
    writer.add_token_types([*kinds, *[spare] * len(unused)])
    writer.add_token_merges([f"{left} {right}" for left, right in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _interleaved(tensor: torch.Tensor, head_dim: int) -> torch.Tensor:
    """What the converter does to llama's queries and keys, written row by row."""
    rows = []
    for head in range(tensor.shape[0] // head_dim):
        for pair in range(head_dim // 2):
            rows.append(tensor[head * head_dim + pair])
            rows.append(tensor[head * head_dim + pair + head_dim // 2])
    return torch.stack(rows)


def _gguf_name(name: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, index, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{index}.{_GGUF_LAYER[stem]}.{kind}"
