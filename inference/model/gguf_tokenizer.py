"""A `tokenizers.Tokenizer` out of GGUF metadata (`tokenizer.ggml.*`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from inference.model.errors import ModelLoadError

__all__ = ["gguf_tokenizer"]

# `tokenizer.ggml.token_type`: the kinds that text is searched for before any merging.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

# How a byte-level vocabulary cuts text into words before merging, by `tokenizer.ggml.pre`: a list
# of patterns, each of which isolates its matches in what the ones before left. The names and the
# patterns are llama.cpp's (`llama_vocab::impl::load`), whose converter writes them.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "llama-bpe": (_LLAMA3,),
}


def gguf_tokenizer(fields: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes: byte-level BPE or Llama's SentencePiece.

    Raises `ModelLoadError` when the file has none or describes another kind.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(fields)
    elif kind == "llama":
        tokenizer = _sentencepiece(fields)
    else:
        raise ModelLoadError(f"unknown GGUF tokenizer {kind!r}; use a file with gpt2 or llama")
    _add_marked_tokens(tokenizer, fields)
    _add_begin(tokenizer, fields)
    return tokenizer


def _vocabulary(fields: Mapping[str, Any]) -> dict[str, int]:
    return {token: index for index, token in enumerate(fields["tokenizer.ggml.tokens"])}


def _merges(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    pairs = []
    for merge in fields["tokenizer.ggml.merges"]:
        left, _, right = merge.partition(" ")
        pairs.append((left, right))
    return pairs


def _byte_level(fields: Mapping[str, Any]) -> Tokenizer:
    name = fields.get("tokenizer.ggml.pre", "none")
    if name not in _PATTERNS:
        raise ModelLoadError(
            f"unknown GGUF pre-tokenizer {name!r}; use a file with one of {', '.join(_PATTERNS)}"
        )
    patterns = _PATTERNS[name]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=_vocabulary(fields),
            merges=_merges(fields),
            # Llama 3 has words in its vocabulary that no merge makes; other files have none.
            ignore_merges=patterns == (_LLAMA3,),
        )
    )
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(fields: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece BPE: the pair whose joint token has the best score is merged first.

    `tokenizers` wants that order as a list of merges: every split of every token into two tokens,
    best score first.
    """
    vocabulary = _vocabulary(fields)
    scores = fields["tokenizer.ggml.scores"]
    ranked = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], vocabulary[left], vocabulary[right], left, right))
    ranked.sort()
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=[(left, right) for *_, left, right in ranked],
            unk_token=fields["tokenizer.ggml.tokens"][fields["tokenizer.ggml.unknown_token_id"]],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    steps: list[Any] = [normalizers.Replace(" ", "\u2581")]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("\u2581"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def _add_marked_tokens(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    types = fields.get("tokenizer.ggml.token_type", ())
    special, plain = [], []
    for token, kind in zip(fields["tokenizer.ggml.tokens"], types, strict=False):
        if kind in (CONTROL, UNKNOWN):
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == USER_DEFINED:
            plain.append(AddedToken(token, special=False, normalized=False))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _add_begin(tokenizer: Tokenizer, fields: Mapping[str, Any]) -> None:
    """Where the file asks for it, a plain prompt begins with the begin-of-text token."""
    # SentencePiece files of old have no such field, and their models expect it.
    wanted = fields.get(
        "tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.model") == "llama"
    )
    index = fields.get("tokenizer.ggml.bos_token_id")
    if wanted and index is not None:
        token = fields["tokenizer.ggml.tokens"][index]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{token} $A", special_tokens=[(token, index)]
        )
