"""The parallel answers to one request (OpenAI's `n`): as many generations, under one account."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from gateway.deps import GatewayDeps
from gateway.openai.account import Account, Caller
from gateway.openai.run import End, Generation
from gateway.upstream.base import UpstreamAccepted
from seedance.protocol.frames import Usage
from seedance.protocol.request import GenerateRequest

__all__ = ["Choices", "usage_of_all"]

T = TypeVar("T")


def usage_of_all(ends: Sequence[End]) -> Usage:
    """What the request is billed: the prompt once, every choice's tokens."""
    completion = sum(end.usage.completion_tokens for end in ends)
    return replace(ends[0].usage, completion_tokens=completion)


class Choices:
    """Opens, reads and closes the generations together; what befalls one befalls all.

    They share a seed and differ in their choice, of which an instance's randomness is a function too:
    choice 0 is what the request would be answered alone.
    """

    def __init__(
        self,
        deps: GatewayDeps,
        request: GenerateRequest,
        caller: Caller,
        count: int = 1,
        *,
        credit: int | None,
    ) -> None:
        account = Account(deps, request, caller, count)
        seed = request.sampling.seed
        seed = secrets.randbits(63) if seed is None else seed
        self._generations = [
            Generation(
                deps,
                replace(request, sampling=replace(request.sampling, seed=seed, choice=choice)),
                caller,
                account,
                credit=credit,
            )
            for choice in range(count)
        ]

    async def open(self) -> UpstreamAccepted:
        """Start all; returns once each was taken. Raises `SeedanceError`: one was refused."""
        taken = await self.each(lambda _, generation: generation.open())
        return taken[0]

    async def each(self, read: Callable[[int, Generation], Awaitable[T]]) -> list[T]:
        """Run `read` for every choice at once.

        Raises the first error, once the others' reading has been cancelled.
        """

        async def run(choice: int, generation: Generation) -> T:
            return await read(choice, generation)

        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(run(*one)) for one in enumerate(self._generations)]
        except* Exception as errors:  # noqa: BLE001 - whatever it is, it is raised: as it came
            failure = errors.exceptions[0]
        else:
            return [task.result() for task in running]
        raise failure

    async def close(self) -> None:
        """Cancel those that have not ended, and write down what all cost."""
        async with asyncio.TaskGroup() as tasks:
            for generation in self._generations:
                tasks.create_task(generation.close())
