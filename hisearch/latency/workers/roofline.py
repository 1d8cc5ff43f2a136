"""Roofline: every operator takes the longer of its arithmetic and its memory traffic, at a stated share of the peaks.

Notation (per layer and rank)
    operator_s = max(flops / (peak * e_flops), bytes / (bandwidth * e_bytes)) + launch_s
    token_s[T] = sum over token-wise operators of operator_s(T)
               + (2 * layers + 1) * all_reduce_s(2 bytes * h * T)                   over the ranks of a group
               + layers * attention launch                                 one attention kernel per layer and step
    sequence_s[S] = LM head + sampling + all-gather of the logits (2 bytes * vocabulary * S)
    chunk_s(new, cached) = max(pairs * flops_per_pair + cached * decompress_flops, bytes of queries, keys and values)
    decode_s(n, c)       = max(c * flops_per_pair, c * kv_bytes + n * query_bytes)
    all_reduce_s(b)      = alpha_s + 2 ceil(log2 n) * link latency + 2 (n - 1) / n * b / (link bandwidth * e)

With g > 1 attention groups, an all-gather and a reduce-scatter of g * T tokens over the ranks of the stage replace the
second all-reduce of a layer. p > 1 stages send 2 bytes * h * T to the next, p - 1 times. A step is one pass of one
group's batch through all stages.

Layers with entries of r tokens read min(topk, n / r) of a query's n tokens, or n / r, beside a window if there is one;
their index scores n / r.

With an indexer (sparse attention, top k), chunks and decodes read min(k, visible tokens), plus
    index_s(pairs, seen) = max(pairs * index FLOPs, seen * index bytes)                 seen: cached and new tokens
at the rate of fp8 where the accelerator has it.

A window of W tokens bounds a chunk's pairs exactly, and a decode batch's context by ``min(c, n * W)``: exact when all
contexts are on the same side of W, otherwise an upper bound.

Ranks that share a sequence's KV attend with the heads of all to their part of its tokens (``workers.context``). Ranks
that share prompts: ``workers.prompts``.

Energy above idle is that of ``hisearch.hardware.power``, of each operator's seconds of arithmetic and of memory at the
attained shares. Launches, links and the host add nothing above idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.hardware.peaks import sheet_peaks
from hisearch.hardware.power import memory_power_share, worker_dynamic_w
from hisearch.latency.costs import StepCosts
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.matrices.entries import EntriesShape, IndexShape
from hisearch.latency.operators import (
    ACTIVATION_BYTES,
    AttentionShape,
    Operator,
    attention_pairs,
    attention_shape,
    sequence_operators,
    token_operators,
    windowed_pairs,
)
from hisearch.latency.parameters import wide_dtype
from hisearch.latency.priced import AcrossHosts, PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.latency.tabulate import Axes, counted, device_costs, table_axes
from hisearch.latency.workers.context import ContextExchange
from hisearch.latency.workers.prompts import Law, PromptRanks
from hisearch.specs.base import DType, EngineName, rate_dtype
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec

#: Weight-only formats: weights are unpacked to 16 bits and multiplied in 16 bits.
WEIGHT_ONLY: frozenset[str] = frozenset({"int4"})


#: Elementwise operators of FFNs, which the attention groups of a stage share.
SHARED_ELEMENTWISE = frozenset({"activation", "expert_activation", "expert_gather"})


@dataclass(frozen=True)
class Rate:
    """Attained rates of one operator family.

    memory_power_share: None for seconds; for joules, of memory's seconds (``hisearch.hardware.power``).
    """

    peak_flops: dict[DType, float]
    flops_share: float
    bytes_per_s: float
    launch_s: float
    memory_power_share: float | None = None

    def seconds(self, dtype: DType, flops: F8, moved_bytes: F8) -> F8:
        """Roofline seconds, without the launch; seconds at full power for joules."""
        # Formats that the accelerator does not multiply are unpacked.
        peak = self.peak_flops.get(rate_dtype(dtype), self.peak_flops["bf16"])
        busy_s = flops * (1.0 / (peak * self.flops_share))
        memory_s = moved_bytes * (1.0 / self.bytes_per_s)
        longer_s = np.maximum(busy_s, memory_s)
        if self.memory_power_share is None:
            return longer_s
        return np.minimum(busy_s + memory_s * self.memory_power_share, longer_s)


class Rates(NamedTuple):
    """Rates of every family."""

    gemm: Rate
    elementwise: Rate
    prefill_attention: Rate
    decode_attention: Rate


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
    collectives: Collectives
    scale: float = 1.0
    engine: EngineName = "vllm"
    prompt_ranks: int = 1

    def token_s(self, tokens: F8) -> F8:
        """Token-wise operators, collectives and launches of a step of ``tokens`` (at least 1) tokens."""
        total = self._operators(self.token_ops, tokens)
        total += self.collectives.step_s(self.split, self.model, tokens)
        total += self.model.layers * max(self.rates.prefill_attention.launch_s, self.rates.decode_attention.launch_s)
        return (total + self.shared_tokens_s(self.collectives, tokens)) * self.scale

    def shared_s(self, tokens: F8) -> F8:
        """The part of ``token_s`` that a stage's attention groups share; ``tokens``: of each group."""
        shared = [op for op in self.token_ops if op.token_groups > 1 or op.name in SHARED_ELEMENTWISE]
        exchanged_s = self.collectives.tokens_shared_s(self.split, self.model, tokens)
        return self.scale * (self._operators(shared, tokens) + exchanged_s)

    def routed_s(self, tokens: F8) -> F8:
        """The routed experts' part of ``token_s``."""
        return self.scale * self._operators([op for op in self.token_ops if op.routed], tokens)

    def sequence_s(self, sequences: F8) -> F8:
        """LM head, sampling and the logits' all-gather for ``sequences`` (at least 1) sequences."""
        total = self._operators(self.sequence_ops, sequences)
        payload = ACTIVATION_BYTES * self.model.vocab_size * sequences
        total += self.collectives.all_gather_s(payload, self.split.tensor)
        return total * self.scale

    def chunk_s(self, new: F8, cached: F8) -> F8:
        """Prefill attention of all layers for chunks of ``new`` (at least 1) tokens behind ``cached`` ones."""
        shape, pairs = self.attention, attention_pairs(new, cached)
        if self.shares_context and shape.index is not None:
            shape = self._context_part(shape)
        total = np.asarray(shape.full_layers * self._chunk_layer_s(shape, pairs, new, cached))
        for kind in shape.entries:
            total = total + kind.layers * self._chunk_entries_s(kind, new, cached)
        if shape.window_layers:
            window = float(shape.window_tokens)
            seen = np.minimum(cached, np.maximum(window - 1.0, 0.0))
            within = self._chunk_layer_s(shape.windowed, windowed_pairs(new, cached, window), new, seen)
            total = total + shape.window_layers * within
        return np.asarray(total * self.scale)

    def decode_s(self, sequences: F8, context: F8) -> F8:
        """Decode attention of all layers for ``sequences`` that read ``context`` tokens in total."""
        shape = self.attention
        if self.shares_context:
            shape = self._context_part(shape)
        total = np.asarray(shape.full_layers * self._decode_layer_s(shape, sequences, context))
        for kind in shape.entries:
            total = total + kind.layers * self._decode_entries_s(kind, sequences, context)
        if shape.window_layers:
            windowed = np.minimum(context, sequences * float(shape.window_tokens))
            within = self._decode_layer_s(shape.windowed, sequences, windowed, shape.window_reads)
            total = total + shape.window_layers * within
        return np.asarray(total * self.scale)

    @property
    def prompts(self) -> PromptRanks | None:
        """Sets of ranks that share the tokens of a batch (prefill context parallelism); None: none do."""
        if self.prompt_ranks == 1:
            return None
        return PromptRanks(self.model, shard(self.model, self.split), self.engine, self.prompt_ranks)

    def shared_tokens_s(self, collectives: Collectives, tokens: F8) -> F8:
        """What sets of ranks that share a batch gather, with ``tokens`` tokens on each."""
        prompts = self.prompts
        return np.zeros_like(tokens) if prompts is None else prompts.gathered_s(collectives, tokens)

    def attention_s(self, chunk_s: Law, decode_s: Law, axes: Axes) -> tuple[F8, F8]:
        """Chunks and decodes on ``axes``, by the laws of a rank by itself."""
        if (prompts := self.prompts) is not None:
            return prompts.attention_s(chunk_s, decode_s, axes)
        return chunk_s(axes.new, axes.cached), decode_s(axes.sequences, axes.context)

    @property
    def shares_context(self) -> bool:
        """Whether ranks share each sequence's KV (decode context parallelism)."""
        return self.split.decode_context > 1

    def exchange(self, collectives: Collectives, launch_s: float) -> ContextExchange:
        """What ranks that share KV send each other.

        collectives: in place of the roofline's. launch_s: of a pass over partial outputs.
        """
        rate = self.rates.elementwise
        return ContextExchange(
            model=self.model,
            part=shard(self.model, self.split),
            engine=self.engine,
            collectives=collectives,
            kv_bytes_per_token=self.attention.kv_bytes_per_token,
            pass_s=lambda moved: launch_s + rate.seconds("bf16", np.zeros_like(moved), moved),
        )

    def _context_part(self, shape: AttentionShape) -> AttentionShape:
        """Attention of the heads of all ranks that share KV to one's part of the tokens: as many FLOPs, fewer bytes."""
        ranks, index = self.split.decode_context, shape.index
        if index is not None:
            scored, read = index.flops_per_pair / ranks, index.bytes_per_token / ranks
            index = replace(index, flops_per_pair=scored, bytes_per_token=read)
        return replace(
            shape,
            kv_bytes_per_token=shape.kv_bytes_per_token / ranks,
            prefill_query_bytes=ranks * shape.prefill_query_bytes,
            decode_query_bytes=ranks * shape.decode_query_bytes,
            index=index,
        )

    def tabulate(self, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above on the knots of ``StepCosts``, without host work."""
        axes = table_axes(max_tokens, max_sequences, max_context, self.model.max_context_tokens)
        chunk_s, decode_s = self.attention_s(self.chunk_s, self.decode_s, axes)
        if self.shares_context:
            exchange = self.exchange(self.collectives, self.rates.elementwise.launch_s)
            chunk_s = chunk_s + self.scale * exchange.cached_s(axes.new, axes.cached)
            decode_s = decode_s + self.scale * exchange.queries_s(axes.sequences)
        return device_costs(
            axes,
            token_s=counted(self.token_s, max_tokens),
            sequence_s=counted(self.sequence_s, max_sequences),
            chunk_s=chunk_s,
            decode_s=decode_s,
        )

    def _operators(self, operators: list[Operator], units: F8) -> F8:
        total = np.zeros_like(units)
        for op in operators:
            rate = self.rates.gemm if op.family == "gemm" else self.rates.elementwise
            total += op.layers * (rate.seconds(op.dtype, op.flops(units), op.bytes_moved(units)) + rate.launch_s)
        return total

    def _chunk_layer_s(self, shape: AttentionShape, pairs: F8, new: F8, cached: F8) -> F8:
        if shape.index is not None:
            scored = self._index_s(shape.index, self.rates.prefill_attention, pairs, cached + new)
            read = windowed_pairs(new, cached, float(shape.index.topk))
            return scored + self._read_s(shape, read, new, cached)
        return self._read_s(shape, pairs, new, cached)

    def _read_s(self, shape: AttentionShape, pairs: F8, new: F8, cached: F8) -> F8:
        """A chunk's attention over the pairs that it reads."""
        flops = pairs * shape.prefill_flops_per_pair + cached * shape.decompress_flops
        moved = (
            (cached + new) * shape.kv_bytes_per_token
            + new * shape.prefill_query_bytes
            + cached * shape.decompress_bytes
        )
        return self.rates.prefill_attention.seconds(self.attention_dtype, flops, moved)

    def _decode_layer_s(self, shape: AttentionShape, sequences: F8, context: F8, reads: float = 1.0) -> F8:
        rate, scored = self.rates.decode_attention, np.zeros_like(context)
        if shape.index is not None:
            scored = self._index_s(shape.index, rate, context, context)
            context = np.minimum(context, sequences * float(shape.index.topk))
        moved = reads * context * shape.kv_bytes_per_token + sequences * shape.decode_query_bytes
        return scored + rate.seconds(self.attention_dtype, context * shape.decode_flops_per_pair, moved)

    def _chunk_entries_s(self, kind: EntriesShape, new: F8, cached: F8) -> F8:
        """One layer's entries: what a chunk's queries read of them, and the index's choice.

        A query at position p sees p / ratio entries: a fraction of one more than it does.
        """
        rate, pairs = self.rates.prefill_attention, attention_pairs(new, cached) / kind.ratio
        entries, chosen = (cached + new) / kind.ratio, np.zeros_like(new)
        if kind.index is not None:
            chosen = self._index_s(kind.index, rate, pairs, entries)
            pairs = windowed_pairs(new, cached, float(kind.index.topk * kind.ratio)) / kind.ratio
        moved = entries * kind.bytes_per_entry + new * kind.query_bytes
        return chosen + rate.seconds(self.attention_dtype, pairs * kind.flops_per_pair, moved)

    def _decode_entries_s(self, kind: EntriesShape, sequences: F8, context: F8) -> F8:
        """One layer's entries, of decodes."""
        rate, entries = self.rates.decode_attention, context / kind.ratio
        chosen = np.zeros_like(entries)
        if kind.index is not None:
            chosen = self._index_s(kind.index, rate, entries, entries)
            entries = np.minimum(entries, sequences * float(kind.index.topk))
        moved = entries * kind.bytes_per_entry + sequences * kind.query_bytes
        return chosen + rate.seconds(self.attention_dtype, entries * kind.flops_per_pair, moved)

    def _index_s(self, index: IndexShape, rate: Rate, pairs: F8, seen: F8) -> F8:
        dtype: DType = "fp8" if "fp8" in rate.peak_flops else self.attention_dtype
        return rate.seconds(dtype, pairs * index.flops_per_pair, seen * index.bytes_per_token)


def attained_worker(profile: LatencyProfileSpec, priced: PricedWorker) -> RooflineWorker:
    """The worker's operators at the profile's shares of the data sheet's peaks."""
    peaks, bandwidth = sheet_peaks(priced.accelerator), priced.accelerator.memory_bandwidth_bytes_per_s
    families = (profile.gemm, profile.elementwise, profile.prefill_attention, profile.decode_attention)
    rates = (Rate(peaks, share.flops, bandwidth * share.bandwidth, share.launch_s) for share in families)
    return _worker(priced, Rates(*rates), peer_collectives(profile, priced.accelerator))


def peer_collectives(profile: LatencyProfileSpec, accelerator: AcceleratorSpec) -> Collectives:
    """Collectives by alpha-beta over the peer link, at the share that the profile states.

    Where it joins some of a host's accelerators, these are as hosts to each other, at the same share of the host link.
    """
    terms, between, peer, host = profile.all_reduce, None, accelerator.peer_link, accelerator.host_link
    if accelerator.peer_ranks is not None:
        bytes_per_s = host.bandwidth_bytes_per_s * terms.bandwidth
        between = AcrossHosts(accelerator.peer_ranks, bytes_per_s, terms.alpha_s + host.latency_s)
    bytes_per_s = peer.bandwidth_bytes_per_s * terms.bandwidth
    return Collectives(None, bytes_per_s, terms.alpha_s, between, link_latency_s=peer.latency_s)


def peak_worker(priced: PricedWorker) -> RooflineWorker:
    """The worker's operators at the data sheet's own rates, without launches and collectives."""
    peak = Rate(sheet_peaks(priced.accelerator), 1.0, priced.accelerator.memory_bandwidth_bytes_per_s, 0.0)
    return _worker(priced, Rates(peak, peak, peak, peak), Collectives(None, np.inf, 0.0))


def energy_costs(profile: LatencyProfileSpec, priced: PricedWorker) -> StepCosts:
    """Joules above idle of one attention group's steps (see the module's law), for any estimator of their time."""
    attained, share = attained_worker(profile, priced), memory_power_share(priced.accelerator)
    powered = replace(
        attained,
        rates=Rates(*(replace(rate, launch_s=0.0, memory_power_share=share) for rate in attained.rates)),
        collectives=Collectives(None, np.inf, 0.0),
        scale=worker_dynamic_w(priced.accelerator, priced.split.tensor),
    )
    return powered.tabulate(*priced.limits)


def _worker(priced: PricedWorker, rates: Rates, collectives: Collectives) -> RooflineWorker:
    model, dtype = priced.model, priced.loaded_dtype
    part, formats = shard(model, priced.split), compute_dtypes(priced.accelerator, model, dtype)
    return RooflineWorker(
        model=model,
        split=part.parallelism,
        token_ops=token_operators(model, part, dtype, formats[dtype], formats),
        sequence_ops=sequence_operators(model, part, dtype, formats),
        attention=attention_shape(model, part, priced.kv_dtype, rereads_windows=priced.rereads_windows),
        attention_dtype=wide_dtype(dtype),
        rates=rates,
        collectives=collectives,
        engine=priced.engine.name,
        prompt_ranks=priced.prompt_ranks,
    )


def compute_dtype(accelerator: AcceleratorSpec, weight_dtype: DType) -> DType:
    """Operand format of the quantised matrices: the weights' own where the accelerator multiplies it, else bf16.

    It is a key of ``peak_flops``: fp4 for both formats of that arithmetic.
    """
    rate = rate_dtype(weight_dtype)
    if rate in accelerator.peak_flops and weight_dtype not in WEIGHT_ONLY:
        return rate
    return "bf16"


def compute_dtypes(accelerator: AcceleratorSpec, model: ModelSpec, weight_dtype: DType) -> dict[DType, DType]:
    """``compute_dtype`` of the formats of a checkpoint in ``weight_dtype``; bf16 of those that are weight-only."""
    formats = [weight_dtype, *model.other_formats.get(weight_dtype, {})]
    return {
        dtype: "bf16" if dtype in model.weight_only else compute_dtype(accelerator, dtype)
        for dtype in dict.fromkeys(formats)
    }


def format_warnings(accelerator: AcceleratorSpec, model: ModelSpec, weight_dtype: DType) -> tuple[str, ...]:
    """Warnings of weights in formats that the accelerator cannot multiply."""
    formats = dict.fromkeys((weight_dtype, *model.other_formats.get(weight_dtype, {})))
    return tuple(
        warning
        for dtype in formats
        if dtype not in model.weight_only
        for warning in _format_warnings(accelerator, dtype)
    )


def _format_warnings(accelerator: AcceleratorSpec, weight_dtype: DType) -> tuple[str, ...]:
    if compute_dtype(accelerator, weight_dtype) == rate_dtype(weight_dtype) or weight_dtype in WEIGHT_ONLY:
        return ()
    return (
        f"the accelerator has no {weight_dtype} arithmetic: {weight_dtype} weights are read at their size and "
        "multiplied at the bf16 rate",
    )
