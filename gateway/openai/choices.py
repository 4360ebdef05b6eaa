"""The parallel answers to one body: `n` for each of its prompts, each a generation, under one account."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gateway.deps import GatewayDeps
from gateway.openai.account import Account, Caller
from gateway.openai.paid import PaidStream, paid_stream
from gateway.openai.run import End, Generation
from gateway.upstream.base import UpstreamAccepted
from seedance.protocol.frames import Usage
from seedance.protocol.receipt import TextDigest
from seedance.protocol.request import GenerateRequest

__all__ = ["Choices"]

T = TypeVar("T")


class Choices:
    """Opens, reads and closes the generations together; what befalls one befalls all.

    `receipt`: somebody wants one, of the one answer there is. `requests` differ in their prompt alone; the answers to the first come first. The `count` choices of one
    prompt share a seed and differ in their choice, of which an instance's randomness is a function
    too: choice 0 is what the request would be answered alone.
    """

    def __init__(
        self,
        deps: GatewayDeps,
        requests: Sequence[GenerateRequest],
        caller: Caller,
        count: int = 1,
        *,
        credit: int | None,
        receipt: bool = False,
    ) -> None:
        account = self._account = Account(deps, requests, caller, count)
        # Of one answer alone (`gateway.openai.schema`).
        self._digest = TextDigest() if receipt and deps.receipts is not None else None
        seed = requests[0].sampling.seed
        seed = secrets.randbits(63) if seed is None else seed
        single = [
            replace(request, sampling=replace(request.sampling, seed=seed, choice=choice))
            for request in requests
            for choice in range(count)
        ]
        self._count = count
        paid: list[PaidStream | None] = []
        for index in range(len(single)):  # the first choice of a prompt pays for it
            bearer = paid[index - index % count] if index % count else None
            paid.append(paid_stream(deps, account, index, bearer))
        self._generations = [
            Generation(
                deps, request, account, index, credit=credit, paid=paid[index], digest=self._digest
            )
            for index, request in enumerate(single)
        ]

    async def open(self) -> UpstreamAccepted:
        """Start all; returns once each was taken. Raises `SeedanceError`: one was refused."""
        taken = await self.each(lambda _, generation: generation.open())
        return taken[0]

    async def each(self, read: Callable[[int, Generation], Awaitable[T]]) -> list[T]:
        """Run `read` for every generation at once, given its index.

        Raises the first error, once the others' reading has been cancelled.
        """

        async def run(index: int, generation: Generation) -> T:
            return await read(index, generation)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(run(*one)) for one in enumerate(self._generations)]
        except* Exception as errors:  # noqa: BLE001 - whatever it is, it is raised: as it came
            failure = errors.exceptions[0]
        else:
            return [task.result() for task in running]
        raise failure

    def usage(self, ends: Sequence[End]) -> Usage:
        """What is billed: each prompt once, every answer's tokens."""
        prompts = [end.usage for end in ends[:: self._count]]
        return Usage(
            sum(usage.prompt_tokens for usage in prompts),
            sum(usage.cached_tokens for usage in prompts),
            sum(end.usage.completion_tokens for end in ends),
        )

    def receipt(self, usage: Usage) -> dict[str, Any]:
        """The field with the one answer's receipt, where one is wanted and the mesh signs any; else nothing."""
        if self._digest is None:
            return {}
        return {"receipt": self._account.receipt(self._digest, usage)}

    async def close(self) -> None:
        """Cancel those that have not ended, and write down what all cost."""
        async with asyncio.TaskGroup() as tasks:
            for generation in self._generations:
                tasks.create_task(generation.close())
