"""The domain's request and instance to protobuf and back, in one place so that they cannot drift."""

from __future__ import annotations

from mesh.canary import BUCKETS, CanaryPhase, CanaryState, Counts, Tally
from mesh.membership import EVERY_CLASS, Instance, Load
from seedance.protocol.request import ChatMessage, GenerateRequest, Sampling
from seedance.v2 import inference_pb2 as pb
from seedance.v2 import router_pb2

__all__ = [
    "canary_from_pb",
    "canary_to_pb",
    "counts_from_pb",
    "counts_to_pb",
    "instance_from_pb",
    "instance_to_pb",
    "load_from_pb",
    "load_to_pb",
    "request_from_pb",
    "request_to_pb",
]


def request_to_pb(request: GenerateRequest) -> pb.GenerateRequest:
    """The wire form of a checked request."""
    sampling = request.sampling
    return pb.GenerateRequest(
        model=request.model,
        messages=[pb.ChatMessage(role=m.role, content=m.content) for m in request.messages],
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        sampling=pb.Sampling(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            logit_bias=sampling.logit_bias,
            seed=sampling.seed,
            logprobs=sampling.logprobs,
            choice=sampling.choice,
        ),
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        stop=request.stop,
        stop_token_ids=request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        expected_tokens=request.expected_tokens,
        max_latency_ms=request.max_latency_ms,
    )


def _sampling_from_pb(message: pb.Sampling) -> Sampling:
    def given(name: str) -> bool:
        return message.HasField(name)

    return Sampling(
        temperature=message.temperature if given("temperature") else 1.0,
        top_p=message.top_p if given("top_p") else 1.0,
        top_k=message.top_k,
        min_p=message.min_p,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=message.repetition_penalty if given("repetition_penalty") else 1.0,
        logit_bias=dict(message.logit_bias),
        seed=message.seed if given("seed") else None,
        logprobs=message.logprobs if given("logprobs") else None,
        choice=message.choice,
    )


def request_from_pb(message: pb.GenerateRequest) -> GenerateRequest:
    """The domain's form; unchecked: call `check_request` on it."""
    return GenerateRequest(
        model=message.model,
        messages=tuple(ChatMessage(m.role, m.content) for m in message.messages),
        prompt=message.prompt if message.HasField("prompt") else None,
        prompt_token_ids=tuple(message.prompt_token_ids),
        sampling=_sampling_from_pb(message.sampling),
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        min_tokens=message.min_tokens,
        stop=tuple(message.stop),
        stop_token_ids=tuple(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        priority=message.priority if message.HasField("priority") else 5,
        deadline_ms=message.deadline_ms,
        expected_tokens=message.expected_tokens,
        max_latency_ms=message.max_latency_ms,
    )


def load_to_pb(load: Load) -> pb.InstanceLoad:
    """The wire form of a load report."""
    return pb.InstanceLoad(
        running=load.running,
        waiting=load.waiting,
        free_blocks=load.free_blocks,
        total_blocks=load.total_blocks,
        tokens_per_s=load.tokens_per_s,
        pause_p99_ms=load.pause_p99_ms,
    )


def load_from_pb(message: pb.InstanceLoad) -> Load:
    """The domain's form of a load report."""
    return Load(
        running=message.running,
        waiting=message.waiting,
        free_blocks=message.free_blocks,
        total_blocks=message.total_blocks,
        tokens_per_s=message.tokens_per_s,
        pause_p99_ms=message.pause_p99_ms,
    )


def instance_to_pb(instance: Instance, load_age_ms: int = 0) -> router_pb2.Instance:
    """The wire form of a member; `load_age_ms` is how old its load report is now."""
    return router_pb2.Instance(
        id=instance.id,
        address=instance.address,
        models=instance.models,
        instance_class=instance.instance_class,
        weight=instance.weight,
        draining=instance.draining,
        load=None if instance.load is None else load_to_pb(instance.load),
        start_id=instance.start_id,
        load_age_ms=load_age_ms,
        context_length=instance.context_length,
        canary=instance.canary,
        report=instance.report,
        prefixes=None
        if instance.prefixes is None
        else router_pb2.PrefixDigest(marks=instance.prefixes),
        lapsed=instance.lapsed,
    )


def instance_from_pb(message: router_pb2.Instance) -> Instance:
    """The domain's form of a member, unchecked. No class means every class, no weight means 1."""
    return Instance(
        id=message.id,
        address=message.address,
        models=tuple(message.models),
        instance_class=message.instance_class or EVERY_CLASS,
        weight=message.weight or 1.0,
        draining=message.draining,
        load=load_from_pb(message.load) if message.HasField("load") else None,
        start_id=message.start_id,
        context_length=message.context_length,
        canary=message.canary,
        report=message.report,
        prefixes=frozenset(message.prefixes.marks) if message.HasField("prefixes") else None,
        lapsed=message.lapsed,
    )


_PHASES = {
    CanaryPhase.IDLE: router_pb2.CANARY_PHASE_IDLE,
    CanaryPhase.RUNNING: router_pb2.CANARY_PHASE_RUNNING,
    CanaryPhase.ROLLED_BACK: router_pb2.CANARY_PHASE_ROLLED_BACK,
}
_PHASES_FROM_PB = {number: phase for phase, number in _PHASES.items()}


def canary_to_pb(state: CanaryState) -> router_pb2.CanaryState:
    """The wire form of a canary's state."""
    return router_pb2.CanaryState(
        revision=state.revision,
        phase=_PHASES[state.phase],
        share=state.share,
        reason=state.reason,
    )


def canary_from_pb(message: router_pb2.CanaryState) -> CanaryState:
    """The domain's form; a phase that a newer router may have is taken for idle."""
    phase = _PHASES_FROM_PB.get(message.phase, CanaryPhase.IDLE)
    return CanaryState(message.revision, phase, message.share, message.reason)


def counts_to_pb(counts: Counts) -> router_pb2.CanaryCounts:
    """The wire form of what was seen."""
    return router_pb2.CanaryCounts(
        canary=_tally_to_pb(counts.canary), stable=_tally_to_pb(counts.stable)
    )


def counts_from_pb(message: router_pb2.CanaryCounts) -> Counts:
    """The domain's form of what was seen."""
    return Counts(canary=_tally_from_pb(message.canary), stable=_tally_from_pb(message.stable))


def _tally_to_pb(tally: Tally) -> router_pb2.CanaryTally:
    return router_pb2.CanaryTally(
        ended=tally.ended, failed=tally.failed, first_tokens=tally.first_tokens
    )


def _tally_from_pb(message: router_pb2.CanaryTally) -> Tally:
    steps = list(message.first_tokens)[:BUCKETS]
    return Tally(message.ended, message.failed, steps + [0] * (BUCKETS - len(steps)))
