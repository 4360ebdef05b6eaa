"""The GPU's runner on a CPU: recorded steps are computed again, streams are written down."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from inference.engine.plan import BlockCopy, StepPlan
from inference.model.attention import TiledAttention
from inference.model.backend import GpuOptions
from inference.model.cuda_attention import VarlenAttention
from inference.model.cuda_graphs import DecodeGraphs
from inference.model.cuda_runner import CudaRunner, load_cuda
from inference.model.errors import ModelLoadError
from inference.model.kv_cache import KvCache
from inference.model.load import load_model
from inference.model.safetensors_weights import SafetensorsWeights
from inference.model.transformer import Transformer, load_transformer
from seedance.protocol.request import Sampling
from tests.support.host_device import HostDevice
from tests.support.solo import SoloSequence, generate, run_together
from tests.support.tiny_models import LLAMA, MISTRAL, write_folder
from tests.support.varlen_reference import varlen_reference

CPU = torch.device("cpu")
BLOCK = 256
ROWS_MAX = 6
DRAWN = Sampling(temperature=1.1, top_p=0.9)
NAMED = Sampling(temperature=0, logprobs=2)
PROMPTS = [[(7 * i + 3 * place) % 280 for place in range(1 + 60 * i)] for i in range(6)]


@pytest.fixture(autouse=True)
def _varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_reference)


@pytest.fixture(scope="module", params=["llama", "mistral"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that sees all, and one with a sliding window."""
    config = {"llama": LLAMA, "mistral": MISTRAL}[request.param]
    return write_folder(tmp_path_factory.mktemp(request.param), config)


def _transformer(folder: Path) -> Transformer:
    return load_transformer(SafetensorsWeights(folder), torch.float32, CPU, lambda _share: None)


class Host:
    """A runner on the CPU, with its recorded steps and its device's log."""

    def __init__(self, folder: Path) -> None:
        plain, _ = load_model(folder, name="x", dtype="fp32", block_size=BLOCK, kv_blocks=24)
        self.plain = plain
        model = _transformer(folder)
        cache = KvCache(model.config, plain.info.total_blocks + 1, BLOCK, torch.float32, CPU)
        paged = VarlenAttention(TiledAttention(model.config.group, BLOCK, torch.float32, CPU))
        self.graphs = DecodeGraphs(model, cache, paged, ROWS_MAX, 4)
        self.device = HostDevice("fetch", "compute", "emit")
        self.runner = CudaRunner(plain.info, model, cache, paged, self.graphs, self.device)
        self.shares: list[float] = []
        self.graphs.record(self.runner.compute.stream, self.shares.append)
        self.device.log.clear()
        self.scratch = cache.pages(0)[0][-1]


@pytest.fixture(scope="module")
def host(folder: Path) -> Host:
    """One for all tests of a model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", varlen_reference)
        return Host(folder)


@pytest.mark.parametrize("sampling", [Sampling(temperature=0), DRAWN, NAMED], ids=str)
def test_it_says_what_the_cpu_says(host: Host, sampling: Sampling) -> None:
    """Six prompts in chunks beside decodes, ending one after the other: the plain runner's tokens."""
    together = [
        SoloSequence(prompt, 3 + 2 * index, sampling, index, chunk=64, stop_at_eos=False)
        for index, prompt in enumerate(PROMPTS)
    ]
    run_together(host.runner, together)
    for index, prompt in enumerate(PROMPTS):
        alone = generate(
            host.plain, prompt, 3 + 2 * index, sampling=sampling, seed=index, stop_at_eos=False
        )
        assert together[index].answer_ids == alone, index
    if sampling is NAMED:
        assert all(len(found.top) == 2 for found in together[-1].sampled)


def test_padding_writes_where_nobody_reads(host: Host) -> None:
    """Three rows run in the step of four, whose fourth row leaves its keys in the scratch block alone."""
    rows = [SoloSequence([5 + i], 1).next_row(i, [i]) for i in range(3)]
    host.scratch.zero_()
    others = host.runner._cache.pages(0)[0][3:-1].clone()
    assert len(host.runner.run(StepPlan(rows))) == 3
    assert host.scratch[0].any()
    assert not host.scratch[1:].any()
    assert torch.equal(host.runner._cache.pages(0)[0][3:-1], others)


def test_powers_of_two_are_recorded_and_heard_of(host: Host) -> None:
    """For six rows at most: 1, 2, 4 and 6."""
    assert host.shares == [0.25, 0.5, 0.75, 1.0]


def test_more_rows_than_recorded_are_computed_all_the_same(host: Host) -> None:
    """Seven decodes are one step more."""
    rows = [SoloSequence([5 + i], 1).next_row(i, [i]) for i in range(ROWS_MAX + 1)]
    assert [found.token_id for found in host.runner.run(StepPlan(rows))] == [
        found.token_id for found in host.plain.run(StepPlan(rows))
    ]


def test_stages_wait_for_each_other_on_the_device_alone(host: Host) -> None:
    """Compute waits for the numbers, emit for the logits, and the engine's thread once, for the ids."""
    host.device.log.clear()
    host.runner.run(StepPlan([SoloSequence([5], 1).next_row(0, [0])]))
    assert host.device.log == [
        "fetch records",
        "fetch records",
        "compute waits for fetch",
        "compute records",
        "compute records",
        "emit waits for compute",
        "emit records",
        "emit records",
        "host waits for emit",
    ]
    assert host.runner.stage_ms == {"fetch": 1.0, "compute": 1.0, "emit": 1.0}


def test_a_chunk_that_chooses_nothing_is_waited_for_too(host: Host) -> None:
    """The next step may use the same places, so none goes on when `run` has returned."""
    host.device.log.clear()
    row = SoloSequence(list(range(40)), 1, chunk=8).next_row(0, [0])
    assert host.runner.run(StepPlan([row])) == []
    assert host.device.log[-1] == "host waits for emit"
    assert "emit waits for compute" in host.device.log


def test_blocks_are_saved_before_they_are_written(host: Host) -> None:
    """Copies to and from the CPU tier go ahead of the step's rows on the same stream, rows or none."""
    host.device.log.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KvCache, "copy", lambda _self, _copies: host.device.log.append("copies"))
        copy = [BlockCopy(0, 0, save=True)]
        row = SoloSequence([5], 1).next_row(0, [0])
        host.runner.run(StepPlan([row], copy))
        assert host.device.log[:4] == [
            "compute records",
            "copies",
            "compute records",
            "fetch records",
        ]
        host.device.log.clear()
        assert host.runner.run(StepPlan([], copy)) == []
        assert "copies" in host.device.log


def test_a_step_that_fails_is_over_when_it_is_told(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the middle of a step reaches the caller after the device is at rest."""

    def fail(_size: int) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(host.graphs, "replay", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        host.runner.run(StepPlan([SoloSequence([5], 1).next_row(0, [0])]))
    assert host.device.log[-1] == "host waits for all"
    host.device.current = "default"


def test_an_empty_step_and_a_row_that_is_only_known(host: Host) -> None:
    """No rows, no results; a token that is only to be remembered chooses nothing."""
    assert host.runner.run(StepPlan([])) == []
    silent = SoloSequence([5, 6], 1, chunk=1).next_row(0, [0])
    speaking = SoloSequence([7], 1).next_row(1, [1])
    assert [found.sequence_id for found in host.runner.run(StepPlan([silent, speaking]))] == [1]


def test_a_closed_runner_lets_its_memory_go(folder: Path) -> None:
    """Nothing is left to run with."""
    closed = Host(folder).runner
    closed.release(1)
    closed.close()
    with pytest.raises(AttributeError):
        closed.run(StepPlan([SoloSequence([1, 2], 1).next_row(0, [0])]))


def test_compiling_that_fails_is_a_warning_or_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By default the model computes without; told not to fall back, the start says what failed."""

    def refuse(_self: Transformer) -> None:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(Transformer, "fuse", refuse)
    info, model, device = Host(folder).plain.info, _transformer(folder), HostDevice(*"abc")
    strict = GpuOptions(2, torch_compile=True, compile_fallback=False)
    with pytest.raises(ModelLoadError, match="no compiler; use --no-torch-compile"):
        load_cuda(info, model, torch.float32, strict, lambda _share: None, device)
    lenient = GpuOptions(2, torch_compile=True)
    runner = load_cuda(info, model, torch.float32, lenient, lambda _share: None, device)
    assert "computes without it: no compiler" in caplog.text
    assert generate(runner, [1, 2, 3], 2)


def test_recording_that_fails_is_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a driver cannot record is computed step by step."""

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    host = Host(folder)
    monkeypatch.setattr(DecodeGraphs, "record", refuse)
    model, device = _transformer(folder), HostDevice(*"abcdef")
    options = GpuOptions(2)
    runner = load_cuda(host.plain.info, model, torch.float32, options, lambda _share: None, device)
    assert "not permitted when stream is capturing" in caplog.text
    assert generate(runner, [1, 2, 3], 4) == generate(host.plain, [1, 2, 3], 4)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own modules
def test_a_fused_model_says_the_same_and_is_compiled_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All layers share what is compiled at the start, for one row and for any more; it computes the same."""
    from torch._dynamo.testing import CompileCounter

    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # as on a GPU
    counter = CompileCounter()
    compile_ = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda run, **options: compile_(run, backend=counter, **options)
    )
    model = _transformer(write_folder(tmp_path, LLAMA | {"num_hidden_layers": 12}))
    layers = model._layers
    with (
        torch.inference_mode()
    ):  # as steps are computed: its tensors are another kind to the compiler
        x = torch.randn(5, model.config.hidden_size)
        plain = [model._run_mlp(x, layer) for layer in layers]
        model.fuse()
        for layer, expected in zip(layers, plain, strict=True):
            torch.testing.assert_close(model._run_mlp(x, layer), expected)
            torch.testing.assert_close(model._run_mlp(x[:1], layer), expected[:1])
    assert counter.frame_count == 2
