"""Scaled roofline: each operator family by its fitted law (``hisearch.latency.laws``), at the accelerator's data sheet.

Notation (per layer and rank; with g attention groups FFNs see m = g * T tokens)
    token_s[T] = sum over dense matrices of gemm_s(m) + moe_s(m) + elementwise operators + collectives
               + layers * min(prefill launch, decode launch)
    sequence_s[S] = LM head + sampling + all-gather of the logits
    chunk_s    = prefill_s of one chunk, less the launch that token_s has
    decode_s   = decode_s of the batch, likewise

Norms, rotary embedding, activation and sampling have no law and use the profile's roofline terms, as do unmeasured
formats and attention, with a warning. Steps within a CUDA graph are priced at the graph's
size; longer ones add ``layers * eager_layer_s``. A step pays ``launch_share`` of the kernels' launch times. Energy is
the roofline's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.hardware.peaks import data_bandwidth, sheet_peaks
from hisearch.latency.costs import LockstepCosts, StepCosts, lockstep_costs
from hisearch.latency.knots import octaves_up_to
from hisearch.latency.laws.attention import Heads, decode_s, mixed_decode_s, prefill_s, rebuild_s
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.laws.entries import Sheets, entries_decode_s, entries_prefill_s
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s, quantise_s
from hisearch.latency.laws.linear import linear_law, parallel_s, serial_s
from hisearch.latency.laws.model import checkpoint_law, law_of
from hisearch.latency.laws.moe import Experts, drawn, moe_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import indexer, sparse_chunk_s, sparse_decode_s
from hisearch.latency.laws.steps import rising
from hisearch.latency.operators import ACTIVATION_BYTES, Operator
from hisearch.latency.parameters import Matrix, lm_head, matrices
from hisearch.latency.sharding import Shard, cached_layers, expert_hidden, linear_layers, moe_layers, window_layers
from hisearch.latency.tabulate import device_costs, table_axes
from hisearch.latency.workers.kinds import kinds_launch_s, kinds_s
from hisearch.latency.workers.roofline import Rate, RooflineWorker
from hisearch.specs.base import DType
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.laws import (
    DecodeTerms,
    EntriesTerms,
    LawsSpec,
    LinearTerms,
    PrefillTerms,
    SparseTerms,
)
from hisearch.specs.models.model import ModelSpec

#: Elementwise operators fused into an engine's attention or all-reduce. TensorRT-LLM's attention operator applies
#: rotary embeddings and writes the KV; its all-reduce adds the residual and normalises.
IN_ATTENTION: dict[str, set[str]] = {"trtllm": {"rotary_kv_write", "window_rotary_kv_write"}}
#: Elementwise operators inside the measured block of sparse attention, for every engine.
IN_SPARSE_BLOCK = {"rotary_kv_write", "compress_4", "compress_128"}
IN_ALL_REDUCE: dict[str, set[str]] = {"trtllm": {"norms"}}

#: Most tokens for which engines run shared experts on a separate stream, in parallel with the routed ones (vLLM's
#: threshold; SGLang's is 1,024).
SHARED_STREAM_TOKENS = 256

#: Products with 16-bit activations where scales are dynamic: a separate pass quantises them, since attention cannot
#: write a narrow format at an unknown scale.
QUANTISED_SEPARATELY = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"})

#: Products whose widths may lie outside the tables: each takes a few microseconds.
SMALL = frozenset({
    "router", "linear_scalar_proj", "linear_decay_proj", "linear_gate_proj", "head_gate_proj", "window_head_gate_proj",
    "index_weights_proj",
})  # fmt: skip


@dataclass(frozen=True)
class ScaledWorker:
    """One worker's operators by their laws; methods take arrays and return seconds.

    roofline: the same worker at the profile's roofline terms, for operators without a law.
    weight_dtype: format of the weights; weights: its name, a key of ``FORMATS``.
    launch_share: share of the kernels' launch times that a step pays.
    window_heads, window_terms: of layers with a window, where they are others.
    """

    model: ModelSpec
    part: Shard
    laws: LawsSpec
    accelerator: AcceleratorSpec
    roofline: RooflineWorker
    collectives: Collectives
    weight_dtype: DType
    weights: str
    prefill: PrefillTerms
    decode: DecodeTerms
    prefill_heads: Heads
    decode_heads: Heads
    launch_share: float = 1.0
    sparse: SparseTerms | None = None
    window_heads: Heads | None = None
    window_terms: tuple[PrefillTerms, DecodeTerms] | None = None
    entries: EntriesTerms | None = None

    @property
    def launch_s(self) -> float:
        """Launch of attention that every step pays, in each layer."""
        if self.sparse is not None:
            return self.sparse.launch_s
        launches = [self.prefill.launch_s, self.decode.launch_s]
        launches += [terms.launch_s for terms in self.window_terms or ()]
        return min(launches)

    def token_s(self, tokens: F8) -> F8:
        """Token-wise operators, collectives and launches of a step of ``tokens`` (at least 1) tokens."""
        total = np.full_like(tokens, self._launches_s() * self.launch_share)
        shared = np.zeros_like(tokens)
        for matrix in self.products():
            if not matrix.routed:
                subtotal = shared if matrix.name.startswith("shared_") else total
                subtotal += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            routed = moe_layers(self.model) * self.experts_s(tokens)
            parallel = (tokens <= SHARED_STREAM_TOKENS) & (
                self.model.moe is not None and not self.model.moe.separate_shared
            )
            total += np.where(parallel, np.maximum(routed, shared), routed + shared)
        split = self.part.parallelism
        normed = self.normalised(tokens)
        for op in self.elementwise_ops():
            total += np.where(normed & (op.name == "norms"), 0.0, op.layers * self.elementwise_s(op, tokens))
        total += self.roofline.shared_tokens_s(self.collectives, tokens)
        return total + self.collectives.step_s(split, self.model, tokens)

    @property
    def linear_law(self) -> LinearTerms | None:
        """The law of prompts in layers with a recurrent state; None: the roofline prices them."""
        linear = self.model.linear_attention
        return linear_law(self.laws, linear.kind) if linear is not None else None

    def normalised(self, tokens: F8) -> npt.NDArray[np.bool_]:
        """Whether the all-reduce of a step of ``tokens`` is fused with the norm."""
        return self.collectives.normalises(ACTIVATION_BYTES * self.model.hidden_size * tokens)

    def products(self) -> list[Matrix]:
        """Matrices as this version of the engine multiplies them: linear attention's inputs may be split in two."""
        all_matrices, linear = matrices(self.model, self.part), self.model.linear_attention
        if linear is None or linear.kind != "gated_delta" or self.laws.linear_inputs == 2:
            return all_matrices
        heads = self.part.linear_value_heads
        split_off = {"linear_in_proj": heads * linear.value_head_dim, "linear_scalar_proj": heads}
        return [
            replace(matrix, outputs=outputs)
            for matrix in all_matrices
            for outputs in (matrix.outputs - split_off.get(matrix.name, 0), split_off.get(matrix.name, 0))
            if outputs
        ]

    def shared_s(self, tokens: F8) -> F8:
        """The part of ``token_s`` that a stage's attention groups share; ``tokens``: of each group."""
        total = np.zeros_like(tokens)
        for matrix in self.products():
            if not matrix.routed and matrix.token_groups > 1:
                total += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            total += moe_layers(self.model) * self.experts_s(tokens)
        return total + self.collectives.tokens_shared_s(self.part.parallelism, self.model, tokens)

    def routed_s(self, tokens: F8) -> F8:
        """The routed experts' part of ``token_s``."""
        return np.asarray(moe_layers(self.model) * self.experts_s(tokens))

    def lockstep_table(self, costs: StepCosts, overhead: EngineOverhead, limit: int) -> LockstepCosts | None:
        """``costs.token_s`` split into own and shared parts; None for a single attention group."""
        if self.part.parallelism.attention_data == 1:
            return None
        shared = np.minimum(rising(self.shared_s, limit, []), costs.token_s)
        return lockstep_costs(costs.token_s, shared, overhead.graph_batches)

    def sequence_s(self, sequences: F8) -> F8:
        """LM head, sampling and the logits' all-gather for ``sequences`` (at least 1) sequences."""
        total = self.product_s(lm_head(self.model, self.part), sequences)
        for op in self.roofline.sequence_ops:
            if op.family == "elementwise":
                total = total + self.elementwise_s(op, sequences)
        payload = ACTIVATION_BYTES * self.model.vocab_size * sequences
        return total + self.collectives.all_gather_s(payload, self.part.parallelism.tensor)

    def format_of(self, matrix: Matrix) -> str:
        """Format of a matrix, by its name in the laws."""
        if not matrix.takes(self.weight_dtype):
            return "fp32" if matrix.single else "bf16"
        stored = matrix.format(self.weight_dtype)
        return self.weights if stored == self.weight_dtype else checkpoint_law(self.model, stored)

    def product_s(self, matrix: Matrix, tokens: F8) -> F8:
        """One layer's product with a dense matrix, by its format's law or the roofline.

        Without a 32-bit law, the 16-bit law prices 32-bit products at their own peak.
        """
        name = None if matrix.tensor_cores else law_of(self.laws.gemm, self.format_of(matrix))
        if name is None:
            known = (*self.roofline.token_ops, *self.roofline.sequence_ops)
            op = next(op for op in known if op.name == matrix.name)
            return self._roofline_s(self.roofline.rates.gemm, op, tokens / matrix.token_groups)
        layout, terms = FORMATS["fp32" if matrix.single else name], self.laws.gemm[name]
        seconds = gemm_s(
            terms, self.sheet(layout.rate), tokens, float(matrix.outputs), float(matrix.inputs),
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
        )  # fmt: skip
        seconds = seconds - self._hidden_s(terms.launch_s)
        separately = name == "fp8" and matrix.name.removeprefix("window_") in QUANTISED_SEPARATELY
        if (passes := self.laws.quantise) is not None and separately:
            launch_s = self._hidden_s(passes.launch_s)
            seconds += quantise_s(passes, self.sheet(layout.rate), tokens, float(matrix.inputs)) - launch_s
        return seconds

    def experts_s(self, tokens: F8) -> F8:
        """One layer's routed experts, by their format's law or the roofline."""
        moe, split = self.model.moe, self.part.parallelism
        assert moe is not None
        name = law_of(self.laws.moe, self.experts_format)
        if name is None:
            routed = [op for op in self.roofline.token_ops if op.routed]
            return np.asarray(sum(self._roofline_s(self.roofline.rates.gemm, op, tokens) for op in routed))
        layout, terms = FORMATS[name], self.laws.moe[name]
        experts = Experts(
            expert_hidden(self.model), self.part.expert_intermediate, moe.experts, moe.experts_per_token, split.expert,
            2.0 if self.model.gated_ffn else 1.0,
        )  # fmt: skip
        of_layer = tokens * split.attention_data
        seconds = moe_s(
            terms, self.sheet(layout.rate), experts, of_layer, drawn(experts, of_layer),
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes, sent=split.all_to_all,
        )  # fmt: skip
        return seconds - self._hidden_s(terms.launch_s)

    @property
    def experts_format(self) -> str:
        """Format of routed experts, by its name in the laws."""
        routed = next((matrix for matrix in matrices(self.model, self.part) if matrix.routed), None)
        return self.weights if routed is None else self.format_of(routed)

    def chunk_s(self, new: F8, cached: F8) -> F8:
        """Prefill attention of all layers for chunks of ``new`` (at least 1) tokens behind ``cached`` ones."""
        if self.entries is not None:
            return self._entries_chunk_s(self.entries, new, cached)
        if self.roofline.attention.entries:
            return self.roofline.chunk_s(new, cached)
        if self.sparse is not None:
            wide, narrow = self._sheets()
            return sparse_chunk_s(self.model, self.part, self.sparse, self.prefill, wide, narrow, new, cached)
        sheet, batch, windowed = self.sheet("bf16"), 1.0, window_layers(self.model)
        full = cached_layers(self.model) - windowed
        seconds = full * (prefill_s(self.prefill, sheet, self.prefill_heads, batch, new, cached) - self.launch_s)
        if windowed:
            window = float(self.model.sliding_window_tokens)
            heads, terms = self.window_heads or self.prefill_heads, (self.window_terms or (self.prefill,))[0]
            within = prefill_s(terms, sheet, heads, batch, new, cached, window)
            seconds = seconds + windowed * (within - self.launch_s)
        if self.model.mla is not None:
            rebuilt = rebuild_s(self.prefill, sheet, self.part.heads, self.model.mla, cached)
            seconds = seconds + cached_layers(self.model) * rebuilt
        if (linear := self.linear_law) is not None:
            seconds = seconds + linear_layers(self.model) * serial_s(linear, new)
        return np.asarray(seconds)

    def _launches_s(self) -> float:
        """Launches of attention that every step pays, in all layers."""
        if self.entries is None:
            return cached_layers(self.model) * self.launch_s
        return kinds_launch_s(self.roofline.attention, self.entries, self.launch_s)

    def _entries_chunk_s(self, terms: EntriesTerms, new: F8, cached: F8) -> F8:
        """``chunk_s`` of a model that reads entries or blocks."""
        shape, sheets, heads = self.roofline.attention, self._sheets(), self.part.heads
        return kinds_s(
            shape,
            lambda: prefill_s(self.prefill, sheets.wide, self.prefill_heads, 1.0, new, cached) - self.launch_s,
            lambda kind: entries_prefill_s(terms, sheets, shape, heads, kind, 1.0, new, cached),
        )

    def _entries_decode_s(self, terms: EntriesTerms, sequences: F8, context: F8) -> F8:
        """``decode_s``, likewise."""
        shape, sheets, heads = self.roofline.attention, self._sheets(), self.part.heads
        return kinds_s(
            shape,
            lambda: decode_s(self.decode, sheets.wide, self.decode_heads, sequences, context) - self.launch_s,
            lambda kind: entries_decode_s(terms, sheets, shape, heads, kind, sequences, context),
        )

    def _sheets(self) -> Sheets:
        return Sheets(self.sheet("bf16"), self.sheet("fp8"))

    def decode_s(self, sequences: F8, context: F8) -> F8:
        """Decode attention of all layers for ``sequences`` (at least 1) that read ``context`` tokens in total."""
        if self.entries is not None:
            return self._entries_decode_s(self.entries, sequences, context)
        if self.roofline.attention.entries:
            return self.roofline.decode_s(sequences, context)
        if self.sparse is not None:
            reader = indexer(self.model, self.part)
            layer = sparse_decode_s(self.sparse, self.sheet("fp8"), reader, sequences, context)
            return np.asarray(self.model.layers * layer)
        sheet, windowed = self.sheet("bf16"), window_layers(self.model)
        shared = context / self.part.parallelism.decode_context
        full = decode_s(self.decode, sheet, self.decode_heads, sequences, shared) - self.launch_s
        seconds = (cached_layers(self.model) - windowed) * full
        if windowed:
            seen = np.minimum(context, sequences * float(self.model.sliding_window_tokens))
            heads = self.window_heads or self.decode_heads
            heads = heads._replace(kv_bytes=self.roofline.attention.window_reads * heads.kv_bytes)
            terms = self.decode if self.window_terms is None else self.window_terms[1]
            within = decode_s(terms, sheet, heads, sequences, seen) - self.launch_s
            seconds = seconds + windowed * within
        return np.asarray(seconds)

    def mixed_decode_s(self, max_tokens: int, max_sequences: int, longest: int) -> F8 | None:
        """Seconds that decodes add to mixed steps, on the octaves of ``StepCosts``; None: as by themselves."""
        terms = self.laws.mixed_attention
        shares = self.roofline.shares_context
        if terms is None or self.model.mla is not None or self.roofline.attention.entries or shares:
            return None
        axes = [octaves_up_to(axis, most) for axis, most in enumerate((max_tokens, longest, max_sequences, longest))]
        prompt, before, sequences, mean = np.ix_(*axes)
        sheet, heads, windowed = self.sheet("bf16"), self.decode_heads, window_layers(self.model)
        full = cached_layers(self.model) - windowed
        seconds = full * mixed_decode_s(terms, sheet, heads, prompt, before, sequences, mean)
        if windowed:
            window = float(self.model.sliding_window_tokens)
            seen, heads = (np.minimum(before, window), np.minimum(mean, window)), self.window_heads or heads
            seconds = seconds + windowed * mixed_decode_s(terms, sheet, heads, prompt, seen[0], sequences, seen[1])
        return np.ascontiguousarray(seconds)

    def sheet(self, rate: DType) -> Sheet:
        """The accelerator's data-sheet figures at the peak of ``rate`` and its sustained clock."""
        peaks, laws = sheet_peaks(self.accelerator), self.laws
        flops = laws.clock_share * peaks.get(rate, peaks["bf16"])
        return Sheet(laws.multiprocessors, flops, data_bandwidth(self.accelerator, laws))

    def tabulate(self, overhead: EngineOverhead, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above on the knots of ``StepCosts``, never falling with tokens; without host work."""
        longest = min(max_context, self.model.max_context_tokens)
        axes = table_axes(max_tokens, max_sequences, max_context, self.model.max_context_tokens)
        chunk_s, decode_s = self.roofline.attention_s(self.chunk_s, self.decode_s, axes)
        if self.roofline.shares_context:
            launch_s = self.launch_share * self.roofline.rates.elementwise.launch_s
            exchange = self.roofline.exchange(self.collectives, launch_s)
            chunk_s = chunk_s + exchange.cached_s(axes.new, axes.cached)
            decode_s = decode_s + exchange.queries_s(axes.sequences)
        return device_costs(
            axes,
            token_s=self._steps_s(overhead, max_tokens),
            sequence_s=rising(self.sequence_s, max_sequences, []),
            chunk_s=chunk_s,
            decode_s=decode_s,
            mixed_decode_s=self.mixed_decode_s(max_tokens, max_sequences, longest),
        )

    def _steps_s(self, overhead: EngineOverhead, limit: int) -> F8:
        """``token_s`` of 0 … ``limit`` tokens, padded to CUDA graphs; eager launches beyond the largest."""
        graphs = overhead.graph_batches
        table = rising(self.token_s, limit, graphs)
        if graphs:
            table[graphs[-1] + 1 :] += self.model.layers * overhead.eager_layer_s
        return table

    def elementwise_ops(self) -> list[Operator]:
        """Elementwise operators with their own kernel; those of routed experts only where no law covers them."""
        tensor = self.part.parallelism.tensor
        # Fused kernels reach peers within a host. Between hosts NCCL reduces, and a separate kernel normalises.
        reduces = tensor > 1 and not self.collectives.spans_hosts(tensor)
        inside = (
            IN_ATTENTION.get(self.laws.engine, set())
            | (IN_SPARSE_BLOCK if self.sparse is not None or self.entries is not None else set())
            | (IN_ALL_REDUCE.get(self.laws.engine, set()) if reduces else set())
        )
        operators = [op for op in self.roofline.token_ops if op.family == "elementwise" and op.name not in inside]
        if law_of(self.laws.moe, self.experts_format) is None:
            return operators
        shared = 3.0 * self.part.shared_intermediate * self.part.parallelism.ffn_groups * ACTIVATION_BYTES
        kept = [op for op in operators if not op.name.startswith("expert_")]
        activations = [op for op in operators if op.name == "expert_activation" and shared]
        return kept + [replace(op, bytes_per_unit=shared) for op in activations]

    def elementwise_s(self, op: Operator, units: F8) -> F8:
        """One layer's elementwise operator, by the profile's roofline terms; linear attention by its law."""
        if op.name == "linear_attention" and (linear := self.linear_law) is not None:
            return parallel_s(linear, self.part.linear_value_heads, units)
        return self._roofline_s(self.roofline.rates.elementwise, op, units)

    def _roofline_s(self, rate: Rate, op: Operator, units: F8) -> F8:
        launch_s = rate.launch_s - self._hidden_s(rate.launch_s)
        return rate.seconds(op.dtype, op.flops(units), op.bytes_moved(units)) + launch_s

    def _hidden_s(self, launch_s: float) -> float:
        """The part of a kernel's launch time that a step does not pay."""
        return (1.0 - self.launch_share) * launch_s
