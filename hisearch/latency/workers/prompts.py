"""Prefill context parallelism: sets of ranks share the tokens of each prompt, and each holds all KV.

Notation (p sets share; a chunk of n new tokens behind c cached ones)
    vLLM        2 p blocks of s = ceil(n / 2 p) tokens; rank r computes blocks r and 2 p - 1 - r, each as a chunk of its
                own behind all that comes before it. Decodes are dealt to ranks in turns
    SGLang      the same with blocks that differ by one token (``zigzag``, GQA), or every p-th token of the batch
                (``interleave``, sparse attention). Decodes run on all sets alike, beside FFNs split over all ranks
    chunk_s     = max over r of sum over its blocks b of chunk_s(s, c + b s)
                = mean over b < p of chunk_s(n / p, c + b n / p)                                        ``interleave``
    decode_s    = decode_s(ceil(n / p), c ceil(n / p) / n)                                              vLLM
    token_s     = that of p attention groups with the tokens of the rank that has most
                + layers * all-gather of the new KV of all ranks + all-gather of hidden states, before logits

So a prompt's matrices see 1 / p of its tokens; attention is as much work as before, in equal parts; experts see all
tokens, gathered and reduce-scattered as those of attention groups are. New KV is gathered in 16 bits: vLLM gathers
latents, rotary keys and indexer keys one after the other, SGLang latents and rotary keys, or keys and values, at once.

Assumed: decodes read equal contexts on all ranks; with several chunks in a step each takes its own longest rank;
``interleave`` reads the keys before each part's end instead of the chunk's. Not counted: copies that reorder tokens.

Source: vLLM 0.33.0, ``v1/worker/gpu/pcp_manager.py``, ``v1/attention/ops/pcp.py``,
``model_executor/layers/fused_moe/runner/moe_runner.py``; SGLang 0.5.23, ``srt/layers/cp``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts, HostFloor, SharedPrompts, StepCosts
from hisearch.latency.knots import INTERLEAVE, LAYOUTS, SWAP, ZIGZAG
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Shard, cached_layers, index_layers
from hisearch.latency.tabulate import Axes
from hisearch.specs.base import EngineName
from hisearch.specs.models.model import ModelSpec

#: A law of two arrays: of new and cached tokens, or of sequences and their context.
Law = Callable[[F8, F8], F8]


def layout_of(engine: EngineName, model: ModelSpec) -> int:
    """How the engine deals a prompt's tokens to ranks."""
    if engine == "vllm":
        return SWAP
    return INTERLEAVE if model.sparse_attention is not None else ZIGZAG


@dataclass(frozen=True)
class PromptRanks:
    """``ranks`` sets of ranks that share the tokens of a batch; ``part``: of each, as of an attention group."""

    model: ModelSpec
    part: Shard
    engine: EngineName
    ranks: int

    def chunk_s(self, law: Law, new: F8, cached: F8) -> F8:
        """Attention of the rank that takes longest; ``law``: that of one rank by itself."""
        new, cached = np.broadcast_arrays(new, cached)
        ranks = self.ranks
        if layout_of(self.engine, self.model) == INTERLEAVE:
            part = np.maximum(new / ranks, 1.0)
            return np.asarray(sum(law(part, cached + b * part) for b in range(ranks)) / ranks)
        blocks = [self._block_s(law, new, cached, block) for block in range(2 * ranks)]
        return np.asarray(np.max([blocks[r] + blocks[-1 - r] for r in range(ranks)], axis=0))

    def _block_s(self, law: Law, new: F8, cached: F8, block: int) -> F8:
        before, tokens = block_of(new, block, self.ranks, uneven=self.engine != "vllm")
        return np.where(tokens > 0, law(np.maximum(tokens, 1.0), cached + before), 0.0)

    def attention_s(self, chunk_s: Law, decode_s: Law, axes: Axes) -> tuple[F8, F8]:
        """Of chunks and of decodes, on ``axes``."""
        chunks_s = self.chunk_s(chunk_s, axes.new, axes.cached)
        return chunks_s, self.decode_s(decode_s, axes.sequences, axes.context)

    def decode_s(self, law: Law, sequences: F8, context: F8) -> F8:
        """Attention of the rank with most decodes, which are dealt in turns."""
        sequences, context = np.broadcast_arrays(sequences, context)
        most = np.ceil(sequences / self.ranks)
        return law(most, context * most / sequences)

    def gathered_s(self, collectives: Collectives, tokens: F8) -> F8:
        """Every rank gathers the KV and the hidden states of all ranks' ``tokens`` tokens each."""
        widths = self._kv_elements()
        of_all = ACTIVATION_BYTES * self.ranks * tokens
        layers = [cached_layers(self.model)] * len(widths)
        if (sparse := self.model.sparse_attention) is not None:
            widths, layers = [*widths, sparse.index_head_dim], [*layers, index_layers(self.model)]
        total = collectives.all_gather_s(self.model.hidden_size * of_all, self.ranks)
        for width, count in zip(widths, layers, strict=True):
            total = total + count * collectives.all_gather_s(width * of_all, self.ranks)
        if layout_of(self.engine, self.model) == ZIGZAG:
            # It takes back complete sums alone (``layers/layer_boundary/boundary.py: _cp_moves``).
            hidden, stage = self.model.hidden_size * of_all, self.part.parallelism.stage_ranks
            kept = collectives.all_reduce_s(hidden, stage) - collectives.reduce_scatter_s(hidden, stage)
            total = total + self.model.ffn_count * kept
        return total

    def _kv_elements(self) -> list[int]:
        """Elements of a token's new KV on a rank, by collective."""
        if (mla := self.model.mla) is None:
            return [2 * self.part.kv_heads * self.model.head_dim]
        latent = [mla.kv_lora_rank, mla.qk_rope_head_dim]
        return latent if self.engine == "vllm" else [sum(latent)]


def block_of(new: F8, block: int, ranks: int, *, uneven: bool) -> tuple[F8, F8]:
    """Tokens before a chunk's ``block``-th of 2 ``ranks`` blocks, and in it.

    uneven: the first blocks have one more (SGLang); else the last ones have fewer, or none (vLLM).
    """
    if uneven:
        least, more = np.divmod(new, 2 * ranks)
        return block * least + np.minimum(block, more), least + (block < more)
    size = np.ceil(new / (2 * ranks))
    before = np.minimum(block * size, new)
    return before, np.minimum(size, new - before)


def compile_shared(compile_costs: Callable[[PricedWorker], CompiledCosts], priced: PricedWorker) -> CompiledCosts:
    """Costs of a worker whose sets of ranks share prompts, from those of its two kinds of step.

    compile_costs: of a worker as its ``split`` says.
    """
    ranks, engine = priced.split.prefill_context, priced.engine.name
    shared = compile_costs(replace(priced, split=priced.split.as_groups, prompt_ranks=ranks))
    whole = shared if engine == "vllm" else compile_costs(priced)
    layout = layout_of(engine, priced.model)
    warning = (
        f"no measurement of prompts shared by {ranks} ranks: laws of attention groups, attention and collectives price "
        f"{LAYOUTS[layout]} steps"
    )
    return replace(
        shared,
        seconds=merged(shared.seconds, whole.seconds, ranks, layout),
        joules=_of_all(merged(shared.joules, whole.joules, ranks, layout), float(ranks)),
        idle_w=shared.idle_w * ranks,
        lockstep=None,
        served=None,
        warnings=(*shared.warnings, warning),
    )


def merged(shared: StepCosts, whole: StepCosts, ranks: int, layout: int) -> StepCosts:
    """Costs of both kinds of step.

    shared: of steps whose tokens are shared, ``token_s`` by tokens of the rank with most. whole: of steps in which all
    sets of ranks have all tokens; not used of vLLM, which has none.
    """
    if layout == SWAP:
        last = len(shared.token_s) - 1
        token_s = shared.token_s[np.minimum(-(-np.arange(last + 1) // ranks), last)]
        floor = shared.floor and shared.floor._replace(graph_tokens=shared.floor.graph_tokens * ranks)
        prompts = SharedPrompts(ranks, layout, shared.token_s)
        return shared._replace(token_s=token_s, floor=floor, mixed_decode_s=None, late=None, shared=prompts)
    # CUDA graphs hold decodes alone (``arg_groups/model_hook.py``: the prefill backend is disabled).
    floor = whole.floor or HostFloor()
    of_step = shared.token_s + (shared.host_s - whole.host_s) * (np.arange(len(shared.token_s)) > 0)
    return whole._replace(
        chunk_rate=shared.chunk_rate,
        floor=floor._replace(pieces_s=floor.eager_s) if any(floor[:4]) else None,
        mixed_decode_s=None,
        late=None,
        shared=SharedPrompts(ranks, layout, of_step, whole.chunk_rate),
    )


def _of_all(joules: StepCosts, ranks: float) -> StepCosts:
    """Joules of all sets of ranks, from those of one."""
    prompts = joules.shared
    assert prompts is not None
    whole = None if prompts.whole_rate is None else ranks * prompts.whole_rate
    return joules._replace(
        token_s=ranks * joules.token_s,
        sequence_s=ranks * joules.sequence_s,
        chunk_rate=ranks * joules.chunk_rate,
        decode_s=ranks * joules.decode_s,
        shared=prompts._replace(token_s=ranks * prompts.token_s, whole_rate=whole),
    )
