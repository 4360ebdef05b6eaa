"""Instances that play a script, without gRPC: for tests of what a gateway does with them.

A `FakeCluster` is the instances; a `FakeUpstream` is one gateway's way to them. Tokens come one per
`step()` and generation while there is credit, by themselves on the running loop when `auto`.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from gateway.upstream.base import (
    Attach,
    NoInstanceError,
    Open,
    PressureLevel,
    StreamListener,
    UpstreamAccepted,
    UpstreamTokens,
    Where,
)
from seedance.protocol.errors import ErrorCode, SeedanceError
from seedance.protocol.frames import Timing, TokenLogprob, Usage
from seedance.protocol.request import GenerateRequest

__all__ = ["FakeCluster", "FakeUpstream", "text_of", "tokens_of"]

PROMPT_TOKENS = 7
MODEL = "fake"


def tokens_of(request: GenerateRequest) -> list[bytes]:
    """The default script: the prompt's words come back, or the last message's."""
    content = request.prompt if request.prompt is not None else request.messages[-1].content
    return [word.encode() for word in content.replace(" ", "\0 ").split("\0")]


def text_of(tokens: Sequence[bytes], count: int | None = None) -> bytes:
    """The text of the first tokens; half a code point is held back."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return "".join(decoder.decode(token) for token in tokens[:count]).encode()


@dataclass(eq=False)
class FakeGeneration:
    """One generation on one instance: `made` tokens exist, the listener was sent `sent` of them.

    As the engine's, it sends nothing beyond `credit`, also of what it made before, nor an end behind that.
    """

    name: str
    epoch: int
    tokens: list[bytes]
    ids: list[int]
    request: GenerateRequest
    made: int
    credit: int | None
    listener: StreamListener | None
    sent: int = 0
    born_with: int = 0
    cancelled: bool = False
    ended: str | None = None
    owner: object = None

    @property
    def limit(self) -> int:
        most = self.request.max_tokens
        return len(self.tokens) if most is None else min(most, len(self.tokens))

    def __post_init__(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = [decoder.decode(token).encode() for token in self.tokens]
        self.text = b"".join(pieces)
        self.text_ends = [0, *accumulate(len(piece) for piece in pieces)]

    def spend(self, tokens: int) -> None:
        if self.credit is not None:
            self.credit -= tokens

    def columns(self, start: int, end: int) -> UpstreamTokens:
        ends = self.text_ends[start : end + 1]
        logprobs = ()
        if self.request.sampling.logprobs is not None:
            logprobs = tuple(
                TokenLogprob(t.decode(errors="replace"), tuple(t), -0.5)
                for t in self.tokens[start:end]
            )
        lengths = tuple(b - a for a, b in pairwise(ends)) if end - start > 1 else ()
        text = self.text[ends[0] : ends[-1]]
        return UpstreamTokens(
            tuple(self.ids[start:end]), start, text, ends[0], 1, logprobs, lengths
        )


@dataclass(eq=False)
class FakeInstance:
    """An instance; what is in `refuses` is said to every `open`."""

    name: str
    alive: bool = True
    refuses: SeedanceError | None = None
    generations: dict[str, FakeGeneration] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)


class FakeCluster:
    """All instances. `script` gives the answer's tokens; a token's id is its place in it."""

    def __init__(
        self,
        script: Callable[[GenerateRequest], list[bytes]] = tokens_of,
        instances: Sequence[str] = ("i-0", "i-1"),
        *,
        auto: bool = True,
    ) -> None:
        self.script = script
        self.instances = {name: FakeInstance(name) for name in instances}
        self.auto = auto
        self.computed = 0
        self._todo: list[Callable[[], None]] = []
        self._scheduled = False

    @property
    def running(self) -> int:
        """Generations that have not ended, on instances that live."""
        return sum(
            g.ended is None
            for i in self.instances.values()
            if i.alive
            for g in i.generations.values()
        )

    def later(self, what: Callable[[], None]) -> None:
        """Do something with the next step, never inside the caller."""
        self._todo.append(what)
        self.schedule()

    def schedule(self) -> None:
        if self.auto and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._auto_step)

    def _auto_step(self) -> None:
        self._scheduled = False
        if self.step():
            self.schedule()

    def step(self) -> bool:
        """Say what is due, and make one token wherever there is credit; whether anything happened."""
        todo, self._todo = self._todo, []
        for what in todo:
            what()
        busy = bool(todo)
        for instance in self.instances.values():
            for generation in list(instance.generations.values()):
                if instance.alive and generation.ended is None:
                    busy |= self._work(generation)
                elif instance.alive and generation.listener is not None:
                    busy |= self.tell(generation)
        return busy or bool(self._todo)

    def _work(self, generation: FakeGeneration) -> bool:
        if generation.cancelled:
            return self._end(generation, "cancelled")
        if generation.made >= generation.limit:
            whole = generation.limit == len(generation.tokens)
            return self._end(generation, "stop" if whole else "length")
        if generation.made > generation.sent and generation.listener is not None:
            return self.tell(generation)
        if generation.credit is not None and generation.credit <= 0:
            return False
        generation.made += 1
        self.computed += 1
        if generation.listener is None:
            # Nobody hears it, and it goes on until its credit is used up.
            generation.sent += 1
            generation.spend(1)
            return True
        return self.tell(generation)

    def _end(self, generation: FakeGeneration, reason: str) -> bool:
        generation.ended = reason
        self.tell(generation)
        return True

    def tell(self, generation: FakeGeneration) -> bool:
        """Send what credit covers of what there is, and the end behind all of it."""
        listener, sent = generation.listener, generation.sent
        if listener is None:
            return False
        behind = generation.made - sent
        count = behind if generation.credit is None else min(behind, generation.credit)
        if count > 0:
            generation.sent += count
            generation.spend(count)
            listener.on_tokens(generation.columns(sent, sent + count))
        if generation.listener is not listener:
            return True
        if generation.ended is not None and generation.sent == generation.made:
            generation.listener = None
            listener.on_done(
                generation.ended, Usage(PROMPT_TOKENS, 2, generation.made), Timing(total_ms=1.0)
            )
            return True
        return count > 0

    def kill(self, name: str) -> None:
        """Kill -9: everything on it is gone, and its calls break."""
        instance = self.instances[name]
        instance.alive = False
        generations, instance.generations = list(instance.generations.values()), {}
        for generation in generations:
            if generation.listener is not None:
                self.later(generation.listener.on_broken)

    def cut(self, name: str) -> None:
        """The call breaks, the instance lives on."""
        for generation in self.instances[name].generations.values():
            listener, generation.listener = generation.listener, None
            if listener is not None:
                self.later(listener.on_broken)


class FakeHandle:
    """`StreamHandle` on a fake generation; of an older epoch it moves nothing."""

    def __init__(self, cluster: FakeCluster, instance: str, generation: str, epoch: int) -> None:
        self._cluster = cluster
        self._instance = cluster.instances[instance]
        self._name = generation
        self._epoch = epoch

    def _found(self) -> FakeGeneration | None:
        generation = self._instance.generations.get(self._name)
        return generation if generation and generation.epoch == self._epoch else None

    @property
    def instance(self) -> str:
        return self._instance.name

    def add_credit(self, tokens: int) -> None:
        assert tokens > 0
        generation = self._found()
        if generation is not None and generation.credit is not None:
            generation.credit += tokens
            self._cluster.schedule()

    def cancel(self) -> None:
        generation = self._found()
        if generation is not None:
            # Who wants no more gives no more credit, and its end must not wait for that.
            generation.credit = None
            generation.cancelled = True
            self._cluster.schedule()

    def release(self) -> None:
        if self._found() is not None:
            del self._instance.generations[self._name]
            self._instance.released.append(self._name)

    def abandon(self) -> None:
        generation = self._found()
        if generation is not None:
            generation.listener = None


class FakeUpstream:
    """One gateway's `Upstream` on a cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.opened: list[Open] = []
        self.attached: list[Attach] = []
        self.dead = False

    def choose(self, where: Where) -> str:
        if where.model not in ("", MODEL):
            raise NoInstanceError(ErrorCode.MODEL_NOT_FOUND, "no such model", field="model")
        for instance in self.cluster.instances.values():
            if instance.alive and instance.name not in where.exclude:
                return instance.name
        raise NoInstanceError(ErrorCode.UNAVAILABLE, "no instance", retry_after_ms=500)

    def open(self, instance: str, spec: Open, listener: StreamListener) -> FakeHandle:
        self.opened.append(spec)
        home = self.cluster.instances[instance]
        if not home.alive:
            self.cluster.later(listener.on_broken)
        elif home.refuses is not None:
            refusal = home.refuses
            self.cluster.later(lambda: listener.on_error(refusal, None))
        elif self._outdated(home, spec, listener):
            pass
        else:
            tokens = self.cluster.script(spec.request)
            made = len(spec.forced_prefix)
            assert list(spec.forced_prefix) == list(range(made))
            generation = FakeGeneration(
                spec.generation,
                spec.epoch,
                tokens,
                list(range(len(tokens))),
                spec.request,
                made,
                spec.credit,
                None,
                sent=made,
                born_with=made,
            )
            home.generations[spec.generation] = generation
            self._accept(home, generation, listener, made)
        return FakeHandle(self.cluster, instance, spec.generation, spec.epoch)

    def attach(self, instance: str, spec: Attach, listener: StreamListener) -> FakeHandle:
        self.attached.append(spec)
        home = self.cluster.instances[instance]
        generation = home.generations.get(spec.generation)
        unknown = SeedanceError(ErrorCode.UNKNOWN_STREAM, "unknown generation")
        if not home.alive:
            self.cluster.later(listener.on_broken)
        elif generation is None or spec.from_token < generation.born_with:
            self.cluster.later(lambda: listener.on_error(unknown, None))
        elif not self._outdated(home, spec, listener):
            generation.epoch = spec.epoch
            generation.credit = spec.credit
            generation.listener = None
            self._accept(home, generation, listener, spec.from_token)
        return FakeHandle(self.cluster, instance, spec.generation, spec.epoch)

    def _outdated(self, home: FakeInstance, spec: Open | Attach, listener: StreamListener) -> bool:
        """Whether a newer owner has the generation; an older one is told that it lost it."""
        expired = SeedanceError(ErrorCode.SESSION_EXPIRED, "taken over by a newer epoch")
        known = home.generations.get(spec.generation)
        if known is None:
            return False
        outdated = spec.epoch < known.epoch
        loser = listener if outdated else known.listener
        if loser is not None and (outdated or loser is not listener):
            self.cluster.later(lambda: loser.on_error(expired, None))
        return outdated

    def _accept(
        self,
        home: FakeInstance,
        generation: FakeGeneration,
        listener: StreamListener,
        from_token: int,
    ) -> None:
        epoch = generation.epoch

        def accept() -> None:
            if self.dead or generation.epoch != epoch:
                return
            if home.generations.get(generation.name) is not generation:
                listener.on_broken()
                return
            generation.listener, generation.owner = listener, self
            generation.sent = from_token
            listener.on_accepted(
                UpstreamAccepted(home.name, MODEL, 8, 1000, PROMPT_TOKENS, from_token)
            )
            if generation.listener is listener:
                self.cluster.tell(generation)

        self.cluster.later(accept)

    def crash(self) -> None:
        """This gateway is gone; what it opened runs until its credit is used up."""
        self.dead = True
        for instance in self.cluster.instances.values():
            for generation in instance.generations.values():
                if generation.owner is self:
                    generation.listener = None

    def models(self) -> list[str]:
        return [MODEL]

    def ready(self) -> bool:
        return any(instance.alive for instance in self.cluster.instances.values())

    def pressure(self) -> PressureLevel:
        return PressureLevel.NONE
