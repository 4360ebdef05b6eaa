"""How soon a first token comes, to a tenant whose prompt somebody asked before and to one whose nobody did."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from inference.engine.limits import EngineLimits
from inference.engine.runner import Prepared
from inference.model.load import load_model
from seedance.protocol.request import GenerateRequest, Sampling
from tests.support.engine_driver import EngineDriver
from tests.support.native_models import LLAMA_SIZES
from tests.support.tiny_models import LLAMA, write_folder

__all__ = ["Z_MAX", "Advantage", "measure"]

# By chance alone once in 15,000 runs; 40 tries that all save time have 5.5.
Z_MAX = 4.0

PROMPT_TOKENS = 900
MODEL = LLAMA | LLAMA_SIZES


@dataclass
class Advantage:
    """Seconds saved in each try by asking what was asked before."""

    saved_s: list[float] = field(default_factory=list)

    @property
    def z(self) -> float:
        """Wilcoxon's signed-rank statistic in standard deviations; about normal if nothing is saved."""
        n = len(self.saved_s)
        ranked = sorted(self.saved_s, key=abs)
        total = sum(math.copysign(rank, saved) for rank, saved in enumerate(ranked, 1))
        return total / math.sqrt(n * (n + 1) * (2 * n + 1) / 6)


class _Asker:
    """Asks an engine with a tiny real model, every time on a stream of its own."""

    def __init__(self, folder: Path) -> None:
        runner, _ = load_model(
            write_folder(folder, MODEL), name="tiny", block_size=16, kv_blocks=1024, threads=1
        )
        self._driver = EngineDriver(runner, EngineLimits(step_tokens_max=1024))
        self._prompts = 0
        self._streams = 0

    def new_prompt(self) -> list[int]:
        """One that nobody has asked."""
        self._prompts += 1
        dice = random.Random(self._prompts)
        return [dice.randrange(3, MODEL["vocab_size"]) for _ in range(PROMPT_TOKENS)]

    def first_token_s(self, prompt: list[int], tenant: str) -> float:
        """Seconds to the first and only token."""
        self._streams += 1
        request = GenerateRequest(
            prompt="x", max_tokens=1, ignore_eos=True, sampling=Sampling(temperature=0)
        )
        prepared = Prepared(prompt, lambda _id: b"x")
        begun = time.perf_counter()
        heard = self._driver.open(
            self._streams, prepared, request, tenant=tenant, lasting=True, call=self._streams
        )
        while not heard.ids:
            self._driver.step()
        return time.perf_counter() - begun


def measure(folder: Path, tries: int) -> tuple[Advantage, Advantage]:
    """What A saves when it asks again, and what B saves by A's having asked.

    Every try has prompts of its own. B asks A's and one that nobody asked, in alternating order.
    """
    asker = _Asker(folder)
    own, foreign = Advantage(), Advantage()
    for number in range(tries):
        prompt, unasked = asker.new_prompt(), asker.new_prompt()
        first = asker.first_token_s(prompt, "a")
        pair = [(prompt, 1), (unasked, -1)]
        times = {}
        for ids, sign in pair if number % 2 else reversed(pair):
            times[sign] = asker.first_token_s(ids, "b")
        foreign.saved_s.append(times[-1] - times[1])
        own.saved_s.append(first - asker.first_token_s(prompt, "a"))
    return own, foreign
