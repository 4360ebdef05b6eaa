"""Loading, and every way in which a model's files can be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inference.model.load import ModelLoadError, load_model
from seedance.protocol.request import ChatMessage, GenerateRequest
from tests.support.solo import generate
from tests.support.tiny_models import LLAMA, MISTRAL, QWEN2, write_folder, write_gguf

PROMPT = [5, 80, 81, 7, 200]


def _load(path: Path, **options: Any) -> Any:
    return load_model(
        path, name="tiny", **{"dtype": "fp32", "kv_blocks": 8, "threads": 1} | options
    )


def test_a_folder_loads(tmp_path: Path) -> None:
    """Info says what is served; the preparer reads a conversation; progress ends at 1."""
    heard: list[float] = []
    runner, preparer = _load(
        write_folder(tmp_path, LLAMA), aliases=("default",), block_size=16, progress=heard.append
    )
    info = runner.info
    assert (info.name, info.aliases, info.vocab_size) == ("tiny", ("default",), 288)
    assert (info.context_length, info.block_size, info.total_blocks) == (1024, 16, 8)
    assert info.eos_token_ids == {2}
    assert heard == [0.5, 1.0]
    assert preparer.prepare(GenerateRequest(messages=(ChatMessage("user", "hello"),))).prompt_ids


def test_shards_are_one_model(tmp_path: Path) -> None:
    """Weights over three files say what the same weights in one file say."""
    whole, _ = _load(write_folder(tmp_path / "whole", QWEN2))
    parts, _ = _load(write_folder(tmp_path / "parts", QWEN2, shards=3))
    assert generate(whole, PROMPT, 20) == generate(parts, PROMPT, 20)


def test_a_context_can_be_shortened(tmp_path: Path) -> None:
    """What was trained is the upper bound."""
    folder = write_folder(tmp_path, LLAMA)
    assert _load(folder, context_length=100)[0].info.context_length == 100
    with pytest.raises(ModelLoadError, match="1024"):
        _load(folder, context_length=1025)


def test_a_sliding_window_leaves_the_context(tmp_path: Path) -> None:
    """A window bounds what a token sees, not how long a text may be."""
    assert _load(write_folder(tmp_path, MISTRAL))[0].info.context_length == 1024


def test_a_cache_by_size(tmp_path: Path) -> None:
    """`kv_cache_gib` is divided into blocks."""
    runner, _ = _load(write_folder(tmp_path, LLAMA), kv_blocks=None, kv_cache_gib=0.001)
    block_bytes = 2 * 64 * (2 * 2 * 8) * 4
    assert runner.info.total_blocks == int(0.001 * 2**30) // block_bytes


@pytest.mark.parametrize("kept", ["fp16", "bf16"])
def test_a_half_size_cache_still_speaks(kept: str, tmp_path: Path) -> None:
    """Rounded keys and values, the same first token."""
    folder = write_folder(tmp_path, LLAMA)
    exact, _ = _load(folder)
    rounded, _ = _load(folder, kv_cache_dtype=kept)
    assert generate(rounded, PROMPT, 1) == generate(exact, PROMPT, 1)


@pytest.mark.parametrize(
    ("options", "kept"),
    [({}, "float32"), ({"dtype": "bf16"}, "bfloat16"), ({"kv_cache_dtype": "fp16"}, "float16")],
)
def test_the_log_says_how_keys_and_values_are_kept(
    options: dict[str, Any], kept: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` is what the model computes in."""
    with caplog.at_level("INFO", logger="inference.model.load"):
        _load(write_folder(tmp_path, LLAMA), **options)
    assert f"kept in torch.{kept}" in caplog.text


def _cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return damage


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _configure(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_text(json.dumps(LLAMA | changes)) and None


def _write(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(text) and None


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "weights cut in the data": (_cut("model-00001.safetensors", 0.9), "half-downloaded"),
    "weights cut in the header": (_cut("model-00002.safetensors", 0.001), "half-downloaded"),
    "an index without names": (_write("{}"), "weight_map"),
    "an index that is a list": (_write("[]"), "not a JSON object"),
    "an index cut": (_write('{"weight_map": {'), "index.json is damaged"),
    "an index of another kind": (_write('{"weight_map": {"lm_head.weight": 5}}'), "weight_map"),
    "an index that leads elsewhere": (
        _write('{"weight_map": {"lm_head.weight": "../x.safetensors"}}'),
        "weight_map",
    ),
    "an index without most tensors": (
        _write('{"weight_map": {"lm_head.weight": "model-00001.safetensors"}}'),
        "is missing",
    ),
    "a shape that is not the config's": (_configure(intermediate_size=64), "shape"),
    "heads that are not the config's": (_configure(head_dim=7), "shape"),
    "a quantized model": (_configure(quantization_config={"quant_method": "gptq"}), "gptq"),
    "partly rotated heads": (_configure(partial_rotary_factor=0.5), "partial_rotary_factor"),
    "a shard is missing": (_remove("model-00002.safetensors"), "missing"),
    "no tokenizer": (_remove("tokenizer.json"), "tokenizer.json is missing"),
    "tokenizer cut": (_cut("tokenizer.json", 0.5), "half-downloaded"),
    "no config": (_remove("config.json"), "config.json is missing"),
    "config cut": (_cut("config.json", 0.5), "config.json is damaged"),
    "unknown architecture": (_configure(architectures=["GPT2LMHeadModel"]), "GPT2LMHeadModel"),
    "no architecture": (_configure(architectures=None), "unknown architecture"),
    "unknown activation": (_configure(hidden_act="relu"), "relu"),
    "unknown rope": (_configure(rope_scaling={"type": "yarn", "factor": 4.0}), "rope_scaling"),
    "a size is missing": (_configure(hidden_size=None), "config.json"),
    "more layers than weights": (_configure(num_hidden_layers=3), "model.layers.2"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_one_line_with_a_remedy(fault: str, tmp_path: Path) -> None:
    """What is wrong is named, on one line, with what to do after it."""
    damage, named = FAULTS[fault]
    folder = write_folder(tmp_path, LLAMA, shards=3)
    damage(folder)
    with pytest.raises(ModelLoadError, match=named) as caught:
        _load(folder)
    _is_one_line_with_a_remedy(str(caught.value))


@pytest.mark.parametrize("keep", [0.0, 0.001, 0.05, 0.3, 0.6, 0.95, 0.999])
def test_a_gguf_file_cut_anywhere_is_refused(keep: float, tmp_path: Path) -> None:
    """In the magic, the metadata, the tensor table or the data: half-downloaded."""
    path = write_gguf(tmp_path / "tiny.gguf", LLAMA)
    _load(path)
    _cut("tiny.gguf", keep)(tmp_path)
    with pytest.raises(ModelLoadError, match="half-downloaded") as caught:
        _load(path)
    _is_one_line_with_a_remedy(str(caught.value))


def test_a_gguf_file_of_another_architecture(tmp_path: Path) -> None:
    """The architecture is named."""
    path = write_gguf(tmp_path / "tiny.gguf", LLAMA | {"model_type": "rwkv"})
    with pytest.raises(ModelLoadError, match="rwkv"):
        _load(path)


@pytest.mark.parametrize("name", ["missing", "missing.gguf"])
def test_a_path_that_does_not_exist(name: str, tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(ModelLoadError, match=name):
        _load(tmp_path / name)


def test_paths_that_are_no_model(tmp_path: Path) -> None:
    """An empty folder and a file of another kind are refused."""
    (tmp_path / "notes.txt").write_text("x")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ModelLoadError) as caught:
            _load(path)
        _is_one_line_with_a_remedy(str(caught.value))


@pytest.mark.parametrize(
    "option",
    [{"block_size": 48}, {"dtype": "int3"}, {"kv_cache_dtype": "fp4"}, {"quantize": "int3"}],
    ids=str,
)
def test_options_outside_their_range(option: dict[str, Any], tmp_path: Path) -> None:
    """Said before anything is read."""
    with pytest.raises(ModelLoadError, match="not one of"):
        _load(tmp_path, **option)


def _is_one_line_with_a_remedy(message: str) -> None:
    assert "\n" not in message
    assert any(word in message for word in ("download", "use ", "name "))
