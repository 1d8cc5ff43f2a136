"""Roofline: every operator takes the longer of its arithmetic and its memory traffic, at a stated share of the peaks.

Notation (per layer and rank)
    operator_s = max(flops / (peak * e_flops), bytes / (bandwidth * e_bytes)) + launch_s
    token_s[T] = sum over token-wise operators of operator_s(T)
               + (2 * layers + 1) * all_reduce_s(2 bytes * h * T)                   over the ranks of a group
               + layers * attention launch                                 one attention kernel per layer and step
    sequence_s[S] = LM head + sampling + all-gather of the logits (2 bytes * vocabulary * S)
    chunk_s(new, cached) = max(pairs * flops_per_pair + cached * decompress_flops, bytes of queries, keys and values)
    decode_s(n, c)       = max(c * flops_per_pair, c * kv_bytes + n * query_bytes)
    all_reduce_s(b)      = alpha_s + 2 (n - 1) / n * b / (link bandwidth * e)

With g > 1 attention groups, an all-gather and a reduce-scatter of g * T tokens over the ranks of the stage replace the
second all-reduce of a layer. p > 1 stages send 2 bytes * h * T to the next, p - 1 times. A step is one pass of one
group's batch through all stages.

With an indexer (sparse attention, top k), chunks and decodes read min(k, visible tokens), plus
    index_s(pairs, seen) = max(pairs * index FLOPs, seen * index bytes)                 seen: cached and new tokens
at the rate of fp8 where the accelerator has it.

A window of W tokens bounds a chunk's pairs exactly, and a decode batch's context by ``min(c, n * W)``: exact when all
contexts are on the same side of W, otherwise an upper bound.

Energy above idle = (active_w - idle_w) * ranks * (each operator's time at peak): power above idle grows with the larger
of compute and memory utilisation (``hisearch.hardware.power``). Launch gaps, links and the host add nothing above idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume
from hisearch.hardware.peaks import sheet_peaks
from hisearch.hardware.power import worker_dynamic_w, worker_idle_w
from hisearch.latency.costs import CompiledCosts, LockstepCosts, StepCosts, lockstep_costs
from hisearch.latency.estimator import LatencyEstimator, register
from hisearch.latency.expert_load import with_uneven_experts
from hisearch.latency.host import front_end_of, with_overhead
from hisearch.latency.knots import knots_up_to
from hisearch.latency.operators import (
    ACTIVATION_BYTES,
    NORM_SUMS_BYTES,
    AttentionShape,
    IndexShape,
    Operator,
    attention_pairs,
    attention_shape,
    sequence_operators,
    token_operators,
    windowed_pairs,
)
from hisearch.latency.parameters import wide_dtype
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, dense_layers, moe_layers, shard
from hisearch.specs.base import DType, rate_dtype
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import page_warnings

#: Weight-only formats: weights are unpacked to 16 bits and multiplied in 16 bits.
WEIGHT_ONLY: frozenset[str] = frozenset({"int4"})


#: Elementwise operators of FFNs, which the attention groups of a stage share.
SHARED_ELEMENTWISE = frozenset({"activation", "expert_activation", "expert_gather"})


@dataclass(frozen=True)
class Rate:
    """Attained rates of one operator family."""

    peak_flops: dict[DType, float]
    flops_share: float
    bytes_per_s: float
    launch_s: float

    def seconds(self, dtype: DType, flops: F8, moved_bytes: F8) -> F8:
        """Roofline seconds, without the launch."""
        return np.asarray(
            np.maximum(
                flops * (1.0 / (self.peak_flops[dtype] * self.flops_share)), moved_bytes * (1.0 / self.bytes_per_s)
            )
        )


@dataclass(frozen=True)
class Rates:
    """Rates of every family; ``link_bytes_per_s`` None leaves collectives out."""

    gemm: Rate
    elementwise: Rate
    prefill_attention: Rate
    decode_attention: Rate
    link_bytes_per_s: float | None
    alpha_s: float


@dataclass(frozen=True)
class RooflineWorker:
    """One worker's operators at given rates; methods take arrays and return seconds (joules if ``scale`` is watts)."""

    model: ModelSpec
    split: Parallelism
    token_ops: list[Operator]
    sequence_ops: list[Operator]
    attention: AttentionShape
    attention_dtype: DType
    rates: Rates
    scale: float = 1.0

    def token_s(self, tokens: F8) -> F8:
        """Token-wise operators, collectives and launches of a step of ``tokens`` (at least 1) tokens."""
        total = self._operators(self.token_ops, tokens)
        payload = ACTIVATION_BYTES * self.model.hidden_size * tokens
        total += self._collectives(payload)
        total += self.model.layers * max(self.rates.prefill_attention.launch_s, self.rates.decode_attention.launch_s)
        return total * self.scale

    def shared_s(self, tokens: F8) -> F8:
        """The part of ``token_s`` that a stage's attention groups share; ``tokens``: of each group."""
        shared = [op for op in self.token_ops if op.token_groups > 1 or op.name in SHARED_ELEMENTWISE]
        payload = ACTIVATION_BYTES * self.model.hidden_size * tokens
        return self.scale * (self._operators(shared, tokens) + self._exchanges(payload))

    def routed_s(self, tokens: F8) -> F8:
        """The routed experts' part of ``token_s``."""
        return self.scale * self._operators([op for op in self.token_ops if op.routed], tokens)

    def sequence_s(self, sequences: F8) -> F8:
        """LM head, sampling and the logits' all-gather for ``sequences`` (at least 1) sequences."""
        total = self._operators(self.sequence_ops, sequences)
        payload = ACTIVATION_BYTES * self.model.vocab_size * sequences
        total += self._collective(all_gather_volume(1.0, self.split.tensor) * payload, self.split.tensor)
        return total * self.scale

    def chunk_s(self, new: F8, cached: F8) -> F8:
        """Prefill attention of all layers for chunks of ``new`` (at least 1) tokens behind ``cached`` ones."""
        shape, pairs = self.attention, attention_pairs(new, cached)
        total = shape.full_layers * self._chunk_layer_s(pairs, new, cached)
        if shape.window_layers:
            window = float(shape.window_tokens)
            seen = np.minimum(cached, np.maximum(window - 1.0, 0.0))
            total = total + shape.window_layers * self._chunk_layer_s(windowed_pairs(new, cached, window), new, seen)
        return np.asarray(total * self.scale)

    def decode_s(self, sequences: F8, context: F8) -> F8:
        """Decode attention of all layers for ``sequences`` that read ``context`` tokens in total."""
        shape = self.attention
        total = shape.full_layers * self._decode_layer_s(sequences, context)
        if shape.window_layers:
            windowed = np.minimum(context, sequences * float(shape.window_tokens))
            total = total + shape.window_layers * self._decode_layer_s(sequences, windowed)
        return np.asarray(total * self.scale)

    def tabulate(self, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above on the knots of ``StepCosts``, without host work."""
        new = knots_up_to(max_tokens).astype(np.float64)
        cached = knots_up_to(min(max_context, self.model.max_context_tokens)).astype(np.float64)
        batch = knots_up_to(max(max_sequences, 2)).astype(np.float64)
        context = knots_up_to(max_context).astype(np.float64)
        # A chunk has at least one token: row 0 repeats row 1 so that the rate is finite everywhere.
        rows, columns = np.maximum(new, 1.0)[:, None], cached[None, :]
        chunk_rate = self.chunk_s(rows, columns) / attention_pairs(rows, columns)
        decode = self.decode_s(batch[:, None], context[None, :])
        decode[0, :] = 0.0
        return StepCosts(
            host_s=0.0,
            host_per_sequence_s=0.0,
            token_s=np.concatenate(([0.0], self.token_s(np.arange(1.0, max_tokens + 1.0)))),
            sequence_s=np.concatenate(([0.0], self.sequence_s(np.arange(1.0, max_sequences + 1.0)))),
            chunk_rate=np.ascontiguousarray(chunk_rate),
            decode_s=np.ascontiguousarray(decode),
        )

    def _operators(self, operators: list[Operator], units: F8) -> F8:
        total = np.zeros_like(units)
        for op in operators:
            rate = self.rates.gemm if op.family == "gemm" else self.rates.elementwise
            total += op.layers * (rate.seconds(op.dtype, op.flops(units), op.bytes_moved(units)) + rate.launch_s)
        return total

    def _collectives(self, payload: F8) -> F8:
        """Seconds of all layers and stages; ``payload``: bytes of the group's own tokens."""
        split, layers = self.split, self.model.layers
        attention = all_reduce_volume(1.0, split.tensor) * payload
        total = (layers + 1) * self._collective(attention, split.tensor)
        if self.model.qk_norm_per_layer:
            sums = payload / (ACTIVATION_BYTES * self.model.hidden_size) * NORM_SUMS_BYTES
            total += layers * self._collective(all_reduce_volume(1.0, split.tensor) * sums, split.tensor)
        if split.attention_data == 1:
            total += layers * self._collective(attention, split.tensor)
        else:
            total += self._exchanges(payload)
        return total + (split.pipeline - 1) * self._collective(payload, split.pipeline)

    def _exchanges(self, payload: F8) -> F8:
        """Seconds to gather the tokens of all groups before the FFNs of all layers, and scatter them after.

        An all-to-all sends a copy to each set of ranks with any of a token's experts, and back; choices are even.
        """
        split, moe = self.split, self.model.moe
        if split.all_to_all and moe is not None:
            sets = float(split.expert)
            copies = sets * (1.0 - (1.0 - 1.0 / sets) ** moe.experts_per_token)
            sent = all_gather_volume(1.0, split.stage_ranks) * payload / split.tensor * copies
            return 2 * moe_layers(self.model) * self._collective(sent, split.stage_ranks)
        gathered = all_gather_volume(1.0, split.stage_ranks) * payload * split.attention_data
        alone = dense_layers(self.model) if split.own_ffn else 0
        reduced = self._collective(all_reduce_volume(1.0, split.tensor) * payload, split.tensor)
        return 2 * (self.model.layers - alone) * self._collective(gathered, split.stage_ranks) + alone * reduced

    def _collective(self, volume_bytes: F8, ranks: int) -> F8:
        if ranks == 1 or self.rates.link_bytes_per_s is None:
            return np.zeros_like(volume_bytes)
        return np.asarray(self.rates.alpha_s + volume_bytes / self.rates.link_bytes_per_s)

    def _chunk_layer_s(self, pairs: F8, new: F8, cached: F8) -> F8:
        shape = self.attention
        if shape.index is not None:
            scored = self._index_s(shape.index, self.rates.prefill_attention, pairs, cached + new)
            read = windowed_pairs(new, cached, float(shape.index.topk))
            return scored + self._read_s(read, new, cached)
        return self._read_s(pairs, new, cached)

    def _read_s(self, pairs: F8, new: F8, cached: F8) -> F8:
        """A chunk's attention over the pairs that it reads."""
        shape = self.attention
        flops = pairs * shape.prefill_flops_per_pair + cached * shape.decompress_flops
        moved = (
            (cached + new) * shape.kv_bytes_per_token
            + new * shape.prefill_query_bytes
            + cached * shape.decompress_bytes
        )
        return self.rates.prefill_attention.seconds(self.attention_dtype, flops, moved)

    def _decode_layer_s(self, sequences: F8, context: F8) -> F8:
        shape, rate, scored = self.attention, self.rates.decode_attention, np.zeros_like(context)
        if shape.index is not None:
            scored = self._index_s(shape.index, rate, context, context)
            context = np.minimum(context, sequences * float(shape.index.topk))
        moved = context * shape.kv_bytes_per_token + sequences * shape.decode_query_bytes
        return scored + rate.seconds(self.attention_dtype, context * shape.decode_flops_per_pair, moved)

    def _index_s(self, index: IndexShape, rate: Rate, pairs: F8, seen: F8) -> F8:
        dtype: DType = "fp8" if "fp8" in rate.peak_flops else self.attention_dtype
        return rate.seconds(dtype, pairs * index.flops_per_pair, seen * index.bytes_per_token)


def lockstep_costs_of(
    worker: RooflineWorker, costs: StepCosts, limit: int, graphs: Sequence[int]
) -> LockstepCosts | None:
    """``costs.token_s`` split into own and shared parts; None for a single attention group.

    ``graphs``: tokens that its small entries are padded to. The roofline prices the shared part.
    """
    if worker.split.attention_data == 1:
        return None
    shared = np.concatenate(([0.0], worker.shared_s(np.arange(1.0, limit + 1.0))))
    return lockstep_costs(costs.token_s, np.minimum(shared, costs.token_s), graphs)


class RooflineEstimator:
    """Compiles a worker to tables with the constants of one LatencyProfile."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        self.profile_name = profile_name
        self.profile = profile

    def worker(self, priced: PricedWorker) -> RooflineWorker:
        """The worker's operators in seconds, not yet tabulated."""
        rates = attained_rates(self.profile, priced.accelerator, sheet_peaks(priced.accelerator))
        return _worker(priced, rates)

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        overhead = engine_overhead(self.profile_name, self.profile, priced.engine)
        timed = self.worker(priced)
        seconds = with_overhead(timed.tabulate(*priced.limits), overhead, priced)
        costs = CompiledCosts(
            seconds=seconds,
            lockstep=lockstep_costs_of(timed, seconds, priced.max_tokens, ()),
            joules=energy_costs(priced),
            idle_w=worker_idle_w(priced.accelerator, priced.split.group_ranks),
            profile=self.profile_name,
            evidence=self.profile.evidence,
            relative_error=self.profile.relative_error,
            front_end=front_end_of(overhead),
            warnings=(
                *format_warnings(priced.accelerator, priced.loaded_dtype),
                *page_warnings(priced.engine.name, priced.engine.page_size, priced.model),
            ),
        )
        return with_uneven_experts(costs, priced.engine.experts, priced.model, timed.split, timed.routed_s)


def energy_costs(priced: PricedWorker) -> StepCosts:
    """Joules above idle of one attention group's steps (see the module's law), for any estimator of their time."""
    powered = replace(peak_worker(priced), scale=worker_dynamic_w(priced.accelerator, priced.split.tensor))
    return powered.tabulate(*priced.limits)


def peak_worker(priced: PricedWorker) -> RooflineWorker:
    """The worker's operators at the data sheet's own rates, without launches and collectives."""
    return _worker(priced, peak_rates(priced.accelerator, sheet_peaks(priced.accelerator)))


def _worker(priced: PricedWorker, rates: Rates) -> RooflineWorker:
    model, dtype = priced.model, priced.loaded_dtype
    part = shard(model, priced.split)
    return RooflineWorker(
        model=model,
        split=part.parallelism,
        token_ops=token_operators(model, part, dtype, compute_dtype(priced.accelerator, dtype)),
        sequence_ops=sequence_operators(model, part, dtype),
        attention=attention_shape(model, part, priced.kv_dtype),
        attention_dtype=wide_dtype(dtype),
        rates=rates,
    )


@register("roofline")
def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The roofline estimator with ``profile``'s constants."""
    return RooflineEstimator(profile_name, profile)


def compute_dtype(accelerator: AcceleratorSpec, weight_dtype: DType) -> DType:
    """Operand format of the quantised matrices: the weights' own where the accelerator multiplies it, else bf16.

    It is a key of ``peak_flops``: fp4 for both formats of that arithmetic.
    """
    rate = rate_dtype(weight_dtype)
    if rate in accelerator.peak_flops and weight_dtype not in WEIGHT_ONLY:
        return rate
    return "bf16"


def engine_overhead(profile_name: str, profile: LatencyProfileSpec, engine: EngineSpec) -> EngineOverhead:
    """Host work of ``engine`` in its version, where the profile knows it.

    Raises:
        ValueError: the profile has none for it.
    """
    if engine.name not in profile.engines:
        raise ValueError(
            f"profile {profile_name}: no overhead for engine '{engine.name}'; "
            f"known: {', '.join(sorted(profile.engines))}"
        )
    overhead = profile.engines[engine.name]
    return overhead.of_version(engine.version) if engine.version else overhead


def attained_rates(profile: LatencyProfileSpec, accelerator: AcceleratorSpec, peaks: dict[DType, float]) -> Rates:
    """Rates of every family at the profile's shares of the data sheet's peaks."""
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    families = (profile.gemm, profile.elementwise, profile.prefill_attention, profile.decode_attention)
    gemm, elementwise, prefill, decode = (Rate(peaks, f.flops, bandwidth * f.bandwidth, f.launch_s) for f in families)
    link = accelerator.peer_link.bandwidth_bytes_per_s * profile.all_reduce.bandwidth
    return Rates(gemm, elementwise, prefill, decode, link, profile.all_reduce.alpha_s)


def peak_rates(accelerator: AcceleratorSpec, peaks: dict[DType, float]) -> Rates:
    """Rates of every family at the data sheet's peaks, without launches and collectives."""
    peak = Rate(peaks, 1.0, accelerator.memory_bandwidth_bytes_per_s, 0.0)
    return Rates(peak, peak, peak, peak, None, 0.0)


def format_warnings(accelerator: AcceleratorSpec, weight_dtype: DType) -> tuple[str, ...]:
    """Warnings of weights in a format that the accelerator cannot multiply."""
    if compute_dtype(accelerator, weight_dtype) == rate_dtype(weight_dtype) or weight_dtype in WEIGHT_ONLY:
        return ()
    return (
        f"the accelerator has no {weight_dtype} arithmetic: {weight_dtype} weights are read at their size and "
        "multiplied at the bf16 rate",
    )
