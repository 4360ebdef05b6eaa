"""What of a model's files concerns text: tokenizer, chat template, tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.model.chat_template import ChatTemplate
from inference.model.errors import ModelLoadError
from inference.model.gguf_tokenizer import gguf_tokenizer
from inference.model.safetensors_weights import read_json
from mesh.clock import SystemClock

__all__ = ["TextSide", "text_of_folder", "text_of_gguf"]

# Control tokens that end a turn, which a GGUF file may not name as its end-of-text.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>")
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TextSide:
    """A model's tokenizer; `template` is None for a model that was not trained to converse."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    eos_token_ids: frozenset[int]


def text_of_folder(folder: Path) -> TextSide:
    """Read `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja` of a folder.

    Raises `ModelLoadError` when the tokenizer is missing or damaged.
    """
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    settings = _read_if_there(folder / "tokenizer_config.json")
    names = _read_if_there(folder / "special_tokens_map.json") | settings
    variables = {key: _text_of(names[key]) for key in NAMED_TOKENS if names.get(key)}
    end = tokenizer.token_to_id(variables.get("eos_token", ""))
    source = _folder_template(folder, settings)
    return TextSide(
        tokenizer=tokenizer,
        template=ChatTemplate(source, variables, SystemClock()) if source else None,
        eos_token_ids=frozenset() if end is None else frozenset({end}),
    )


def text_of_gguf(fields: Mapping[str, Any]) -> TextSide:
    """Read tokenizer and template out of GGUF metadata. Raises `ModelLoadError`."""
    try:
        tokenizer = gguf_tokenizer(fields)
    except (KeyError, IndexError, TypeError) as error:
        raise ModelLoadError(
            f"the GGUF file's tokenizer lacks or misstates {error}; use another file"
        ) from error
    tokens = fields["tokenizer.ggml.tokens"]
    variables = {}
    for key in NAMED_TOKENS:
        field = key.replace("unk_", "unknown_").replace("pad_", "padding_")
        index = fields.get(f"tokenizer.ggml.{field}_id")
        if index is not None:
            variables[key] = tokens[index]
    added = tokenizer.get_added_tokens_decoder()
    source = fields.get("tokenizer.chat_template")
    return TextSide(
        tokenizer=tokenizer,
        template=ChatTemplate(source, variables, SystemClock()) if source else None,
        eos_token_ids=frozenset(
            index
            for index, token in added.items()
            if token.special and token.content in END_OF_TURN
        ),
    )


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.exists():
        raise ModelLoadError(f"{path} is missing; download the model again (with its tokenizer)")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    # `tokenizers` raises bare Exception for every fault of a file.
    except Exception as error:
        raise ModelLoadError(
            f"{path} is damaged or half-downloaded; delete it and download it again"
        ) from error
    # A file may carry its training's settings; a prompt is never cut or filled up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _text_of(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _folder_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """The newest place wins: a file of its own, then the tokenizer's settings."""
    own = folder / "chat_template.jinja"
    if own.exists():
        return own.read_text(encoding="utf-8")
    found = settings.get("chat_template")
    # Several named templates: `default` is the plain conversation, the others serve tools.
    if isinstance(found, list):
        found = {item["name"]: item["template"] for item in found}.get("default")
    return found
