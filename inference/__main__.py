"""`python -m inference`: one instance, from its model to its last stream."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence

from inference.config import InferenceSettings
from inference.engine.runner import Preparer, Runner
from inference.instance import Instance
from inference.openai.wire import Upstream
from inference.script import ScriptPreparer, ScriptRunner, script_info
from mesh.flags import settings_from_flags
from mesh.lifecycle import die_with_parent, run_service
from mesh.settings import exit_with
from mesh.telemetry.logs import setup_logs

__all__ = ["load_engine", "main"]

# The engine's threads are plain Python between two runs of the model: the event loop must not wait
# Python's default 5 ms for its turn.
SWITCH_INTERVAL_S = 0.0005


def load_engine(settings: InferenceSettings) -> tuple[Runner | Upstream, Preparer | None]:
    """The runner and preparer that the settings ask for, or the model of their upstream.

    Ends the process when there are none.
    """
    if settings.engine == "openai":
        from inference.openai.client import find_upstream

        try:
            return find_upstream(settings), None
        except ConnectionError as error:
            exit_with(f"no model at {settings.upstream_url} ({error}): see --upstream-url")
    if settings.engine == "script":
        info = script_info(
            aliases=settings.alias_names,
            context_length=settings.context_length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
        )
        return ScriptRunner(info), ScriptPreparer()
    if settings.model is None:
        exit_with("no model: give its folder or GGUF file with --model, or --engine script")
    # torch takes seconds to import, and only this engine needs it.
    from inference.model.backend import GpuOptions
    from inference.model.load import ModelLoadError, load_model

    try:
        return load_model(
            settings.model,
            name=settings.model_name or settings.model.stem,
            aliases=settings.alias_names,
            context_length=settings.context_length,
            block_size=settings.block_size,
            kv_blocks=settings.kv_blocks,
            kv_cache_gib=settings.kv_cache_gib,
            kv_offload_gib=settings.kv_offload_gib,
            dtype=settings.dtype,
            kv_cache_dtype=settings.kv_cache_dtype,
            quantize=settings.quantize,
            threads=settings.threads,
            cpu_backend=settings.cpu_backend,
            native_library=settings.native_library,
            gpu=GpuOptions(
                settings.limits().batch_max,
                settings.torch_compile,
                settings.torch_compile_fallback,
            ),
        )
    except ModelLoadError as error:
        exit_with(str(error))


def main(argv: Sequence[str] | None = None) -> None:
    """Run one instance; exit code 0 after a drain, 2 for misuse, 1 when the engine failed."""
    settings = settings_from_flags(
        InferenceSettings,
        "python -m inference",
        "Serves one model, or scripts that stand in for one.",
        argv,
    )
    if settings.die_with_parent:
        die_with_parent()
    setup_logs(settings.log_level, as_json=settings.log_json)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    model, preparer = load_engine(settings)
    # What is loaded by now stays: the collector need not look at it again and again.
    gc.freeze()
    crashed = False

    async def body(stop: asyncio.Event) -> None:
        nonlocal crashed
        instance = Instance(settings, model, preparer, stop)
        await instance.serve()
        crashed = instance.crashed

    run_service(body)
    if crashed:
        sys.exit(1)


if __name__ == "__main__":
    main()
