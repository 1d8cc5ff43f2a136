"""Scaled roofline: each operator family by its fitted law (``hisearch.latency.laws``), at the accelerator's data sheet.

Notation (per layer and rank; with g attention groups FFNs see m = g * T tokens)
    token_s[T] = sum over dense matrices of gemm_s(m) + moe_s(m) + elementwise operators + collectives
               + layers * min(prefill launch, decode launch)
    sequence_s[S] = LM head + sampling + all-gather of the logits
    chunk_s    = prefill_s of one chunk, less the launch that token_s has
    decode_s   = decode_s of the batch, likewise

Norms, rotary embedding, activation and sampling have no law and use the profile's roofline terms, as do unmeasured
formats, with a warning. Steps within a CUDA graph are priced at the graph's size; longer ones add
``layers * eager_layer_s``. A step pays ``launch_share`` of the kernels' launch times. Energy is the roofline's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hisearch.base.dtypes import F8
from hisearch.hardware.peaks import sheet_peaks
from hisearch.hardware.power import worker_idle_w
from hisearch.latency.costs import CompiledCosts, LockstepCosts, StepCosts, lockstep_costs
from hisearch.latency.estimator import LatencyEstimator, register
from hisearch.latency.estimators.roofline import (
    RooflineEstimator,
    RooflineWorker,
    energy_costs,
    engine_overhead,
    format_warnings,
)
from hisearch.latency.expert_load import with_uneven_experts
from hisearch.latency.host import front_end_of, with_overhead
from hisearch.latency.knots import knots_up_to, octaves_up_to
from hisearch.latency.laws.attention import Heads, decode_s, mixed_decode_s, prefill_s, rebuild_s
from hisearch.latency.laws.collectives import Collectives, curve_for
from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s, quantise_s
from hisearch.latency.laws.linear import parallel_s, serial_s
from hisearch.latency.laws.model import decode_heads, law_of, prefill_heads, weights_law
from hisearch.latency.laws.moe import Experts, drawn, moe_s
from hisearch.latency.laws.ranges import beyond
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.laws.sparse import dense_s, indexer, sparse_decode_s, sparse_prefill_s
from hisearch.latency.laws.steps import rising
from hisearch.latency.operators import ACTIVATION_BYTES, Operator, attention_pairs
from hisearch.latency.parameters import Matrix, matrices
from hisearch.latency.priced import PricedWorker
from hisearch.latency.served_errors import ServedErrors, plain_name, served_errors
from hisearch.latency.sharding import Shard, linear_layers, moe_layers, shard, window_layers
from hisearch.specs.base import DType
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.laws import CollectiveCurve, DecodeTerms, LawsSpec, PrefillTerms, SparseTerms
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import page_warnings

#: Elementwise operators fused into an engine's attention or all-reduce. TensorRT-LLM's attention operator applies
#: rotary embeddings and writes the KV; its all-reduce adds the residual and normalises.
IN_ATTENTION: dict[str, set[str]] = {"trtllm": {"rotary_kv_write"}}
#: Elementwise operators inside the measured block of sparse attention, for every engine.
IN_SPARSE_BLOCK = {"rotary_kv_write"}
IN_ALL_REDUCE: dict[str, set[str]] = {"trtllm": {"norms"}}

#: Most tokens of a step for which SGLang fuses the all-reduce (``FUSE_ALLREDUCE_MAX_BATCH_SIZE``).
FUSED_TOKENS = 2048

#: Most tokens for which engines run shared experts on a separate stream, in parallel with the routed ones (vLLM's
#: threshold; SGLang's is 1,024).
SHARED_STREAM_TOKENS = 256

#: Products with 16-bit activations where scales are dynamic: a separate pass quantises them, since attention cannot
#: write a narrow format at an unknown scale.
QUANTISED_SEPARATELY = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"})

#: Products whose widths may lie outside the tables: each takes a few microseconds.
SMALL = frozenset({"router", "linear_scalar_proj"})

#: Relative deviation of memory bandwidth or peak beyond which a profile is of another accelerator.
SAME_SHEET = 0.02


@dataclass(frozen=True)
class ScaledWorker:
    """One worker's operators by their laws; methods take arrays and return seconds.

    roofline: the same worker at the profile's roofline terms, for operators without a law.
    weight_dtype: format of the weights; weights: its name, a key of ``FORMATS``.
    launch_share: share of the kernels' launch times that a step pays.
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

    @property
    def launch_s(self) -> float:
        """Launch of attention that every step pays, in each layer."""
        if self.sparse is not None:
            return self.sparse.launch_s
        return min(self.prefill.launch_s, self.decode.launch_s)

    def token_s(self, tokens: F8) -> F8:
        """Token-wise operators, collectives and launches of a step of ``tokens`` (at least 1) tokens."""
        softmax = self.model.layers - linear_layers(self.model)
        total = np.full_like(tokens, softmax * self.launch_s * self.launch_share)
        shared = np.zeros_like(tokens)
        for matrix in self.products():
            if not matrix.routed:
                subtotal = shared if matrix.name.startswith("shared_") else total
                subtotal += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            routed = moe_layers(self.model) * self.experts_s(tokens)
            total += np.where(tokens <= SHARED_STREAM_TOKENS, np.maximum(routed, shared), routed + shared)
        split = self.part.parallelism
        normed = self.normalised(tokens)
        for op in self.elementwise_ops():
            total += np.where(normed & (op.name == "norms"), 0.0, op.layers * self.elementwise_s(op, tokens))
        return total + self.collectives.step_s(split, self.model, tokens)

    def normalised(self, tokens: F8) -> npt.NDArray[np.bool_]:
        """Whether the all-reduce of a step of ``tokens`` is fused with the norm."""
        return self.collectives.normalises(ACTIVATION_BYTES * self.model.hidden_size * tokens)

    def products(self) -> list[Matrix]:
        """Matrices as this version of the engine multiplies them: linear attention's inputs may be split in two."""
        all_matrices, linear = matrices(self.model, self.part), self.model.linear_attention
        if linear is None or self.laws.linear_inputs == 2:
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
        split = self.part.parallelism
        total = np.zeros_like(tokens)
        for matrix in self.products():
            if not matrix.routed and matrix.token_groups > 1:
                total += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            total += moe_layers(self.model) * self.experts_s(tokens)
        return total + self.collectives.shared_s(split, self.model, ACTIVATION_BYTES * self.model.hidden_size * tokens)

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
        head = Matrix("lm_head", self.model.hidden_size, self.part.vocab, layers=1, quantised=False)
        total = self.product_s(head, sequences)
        for op in self.roofline.sequence_ops:
            if op.family == "elementwise":
                total = total + self.elementwise_s(op, sequences)
        payload = ACTIVATION_BYTES * self.model.vocab_size * sequences
        return total + self.collectives.all_gather_s(payload, self.part.parallelism.tensor)

    def format_of(self, matrix: Matrix) -> str:
        """Format of a dense matrix, by its name in the laws."""
        if matrix.takes(self.weight_dtype):
            return self.weights
        return "fp32" if matrix.single else "bf16"

    def product_s(self, matrix: Matrix, tokens: F8) -> F8:
        """One layer's product with a dense matrix, by its format's law or the roofline.

        Without a 32-bit law, the 16-bit law prices 32-bit products at their own peak.
        """
        name = law_of(self.laws.gemm, self.format_of(matrix))
        if name is None:
            op = next(op for op in self.roofline.token_ops if op.name == matrix.name)
            return self._gemm_roofline_s(op, tokens / matrix.token_groups)
        layout, terms = FORMATS["fp32" if matrix.single else name], self.laws.gemm[name]
        seconds = gemm_s(
            terms, self.sheet(layout.rate), tokens, float(matrix.outputs), float(matrix.inputs),
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
        )  # fmt: skip
        seconds = seconds - self._hidden_s(terms.launch_s)
        if (passes := self.laws.quantise) is not None and name == "fp8" and matrix.name in QUANTISED_SEPARATELY:
            launch_s = self._hidden_s(passes.launch_s)
            seconds += quantise_s(passes, self.sheet(layout.rate), tokens, float(matrix.inputs)) - launch_s
        return seconds

    def experts_s(self, tokens: F8) -> F8:
        """One layer's routed experts, by their format's law or the roofline."""
        moe, split = self.model.moe, self.part.parallelism
        assert moe is not None
        name = law_of(self.laws.moe, self.weights)
        if name is None:
            routed = [op for op in self.roofline.token_ops if op.routed]
            return np.asarray(sum(self._gemm_roofline_s(op, tokens) for op in routed))
        layout, terms = FORMATS[name], self.laws.moe[name]
        experts = Experts(
            self.model.hidden_size, self.part.expert_intermediate, moe.experts, moe.experts_per_token, split.expert,
            2.0 if self.model.gated_ffn else 1.0,
        )  # fmt: skip
        of_layer = tokens * split.attention_data
        seconds = moe_s(
            terms, self.sheet(layout.rate), experts, of_layer, drawn(experts, of_layer),
            weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes,
        )  # fmt: skip
        return seconds - self._hidden_s(terms.launch_s)

    def chunk_s(self, new: F8, cached: F8) -> F8:
        """Prefill attention of all layers for chunks of ``new`` (at least 1) tokens behind ``cached`` ones."""
        if self.sparse is not None:
            return self._sparse_chunk_s(self.sparse, new, cached)
        sheet, batch, windowed = self.sheet("bf16"), 1.0, window_layers(self.model)
        full = self.model.layers - linear_layers(self.model) - windowed
        seconds = full * (prefill_s(self.prefill, sheet, self.prefill_heads, batch, new, cached) - self.launch_s)
        if windowed:
            window = float(self.model.sliding_window_tokens)
            within = prefill_s(self.prefill, sheet, self.prefill_heads, batch, new, cached, window)
            seconds = seconds + windowed * (within - self.launch_s)
        if self.model.mla is not None:
            rebuilt = rebuild_s(self.prefill, sheet, self.part.heads, self.model.mla, cached)
            seconds = seconds + self.model.layers * rebuilt
        if (linear := self.laws.linear_attention.get("bf16")) is not None:
            seconds = seconds + linear_layers(self.model) * serial_s(linear, new)
        return np.asarray(seconds)

    def _sparse_chunk_s(self, terms: SparseTerms, new: F8, cached: F8) -> F8:
        """``chunk_s`` of a model with sparse attention."""
        reader, layers = indexer(self.model, self.part), self.model.layers
        seconds = layers * sparse_prefill_s(terms, self.sheet("fp8"), reader, 1.0, new, cached)
        if not terms.dense_short:
            return np.asarray(seconds)
        short = dense_s(self.model, self.part, self.prefill, self.sheet("bf16"), 1.0, new, cached)
        return np.where(cached + new <= reader.topk, layers * short, seconds)

    def decode_s(self, sequences: F8, context: F8) -> F8:
        """Decode attention of all layers for ``sequences`` (at least 1) that read ``context`` tokens in total."""
        if self.sparse is not None:
            reader = indexer(self.model, self.part)
            layer = sparse_decode_s(self.sparse, self.sheet("fp8"), reader, sequences, context)
            return np.asarray(self.model.layers * layer)
        sheet, windowed = self.sheet("bf16"), window_layers(self.model)
        full = decode_s(self.decode, sheet, self.decode_heads, sequences, context) - self.launch_s
        seconds = (self.model.layers - linear_layers(self.model) - windowed) * full
        if windowed:
            seen = np.minimum(context, sequences * float(self.model.sliding_window_tokens))
            within = decode_s(self.decode, sheet, self.decode_heads, sequences, seen) - self.launch_s
            seconds = seconds + windowed * within
        return np.asarray(seconds)

    def mixed_decode_s(self, max_tokens: int, max_sequences: int, longest: int) -> F8 | None:
        """Seconds that decodes add to mixed steps, on the octaves of ``StepCosts``; None: as by themselves."""
        terms = self.laws.mixed_attention
        if terms is None or self.model.mla is not None:
            return None
        axes = [octaves_up_to(axis, most) for axis, most in enumerate((max_tokens, longest, max_sequences, longest))]
        prompt, before, sequences, mean = np.ix_(*axes)
        sheet, heads, windowed = self.sheet("bf16"), self.decode_heads, window_layers(self.model)
        full = self.model.layers - linear_layers(self.model) - windowed
        seconds = full * mixed_decode_s(terms, sheet, heads, prompt, before, sequences, mean)
        if windowed:
            window = float(self.model.sliding_window_tokens)
            seen = np.minimum(before, window), np.minimum(mean, window)
            seconds = seconds + windowed * mixed_decode_s(terms, sheet, heads, prompt, seen[0], sequences, seen[1])
        return np.ascontiguousarray(seconds)

    def sheet(self, rate: DType) -> Sheet:
        """The accelerator's data-sheet figures at the peak of ``rate`` and its sustained clock."""
        peaks, laws = sheet_peaks(self.accelerator), self.laws
        flops = laws.clock_share * peaks.get(rate, peaks["bf16"])
        return Sheet(laws.multiprocessors, flops, self.accelerator.memory_bandwidth_bytes_per_s)

    def tabulate(self, overhead: EngineOverhead, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above on the knots of ``StepCosts``, never falling with tokens; without host work."""
        new = knots_up_to(max_tokens).astype(np.float64)
        cached = knots_up_to(min(max_context, self.model.max_context_tokens)).astype(np.float64)
        batch = knots_up_to(max(max_sequences, 2)).astype(np.float64)
        context = knots_up_to(max_context).astype(np.float64)
        rows, columns = np.maximum(new, 1.0)[:, None], cached[None, :]
        chunk_rate = self.chunk_s(rows, columns) / attention_pairs(rows, columns)
        decode = self.decode_s(np.maximum(batch, 1.0)[:, None], context[None, :])
        decode[0, :] = 0.0
        return StepCosts(
            host_s=0.0,
            host_per_sequence_s=0.0,
            token_s=self._steps_s(overhead, max_tokens),
            sequence_s=rising(self.sequence_s, max_sequences, []),
            chunk_rate=np.ascontiguousarray(chunk_rate),
            decode_s=np.ascontiguousarray(decode),
            mixed_decode_s=self.mixed_decode_s(
                max_tokens, max_sequences, min(max_context, self.model.max_context_tokens)
            ),
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
            | (IN_SPARSE_BLOCK if self.sparse is not None else set())
            | (IN_ALL_REDUCE.get(self.laws.engine, set()) if reduces else set())
        )
        operators = [op for op in self.roofline.token_ops if op.family == "elementwise" and op.name not in inside]
        if law_of(self.laws.moe, self.weights) is None:
            return operators
        shared = 3.0 * self.part.shared_intermediate * self.part.parallelism.ffn_groups * ACTIVATION_BYTES
        kept = [op for op in operators if not op.name.startswith("expert_")]
        activations = [op for op in operators if op.name == "expert_activation" and shared]
        return kept + [replace(op, bytes_per_unit=shared) for op in activations]

    def elementwise_s(self, op: Operator, units: F8) -> F8:
        """One layer's elementwise operator, by the profile's roofline terms; linear attention by its law."""
        if op.name == "linear_attention" and (linear := self.laws.linear_attention.get("bf16")) is not None:
            return parallel_s(linear, self.part.linear_value_heads, units)
        rate = self.roofline.rates.elementwise
        launch_s = rate.launch_s - self._hidden_s(rate.launch_s)
        return rate.seconds(op.dtype, op.flops(units), op.bytes_moved(units)) + launch_s

    def _gemm_roofline_s(self, op: Operator, units: F8) -> F8:
        rate = self.roofline.rates.gemm
        launch_s = rate.launch_s - self._hidden_s(rate.launch_s)
        return rate.seconds(op.dtype, op.flops(units), op.bytes_moved(units)) + launch_s

    def _hidden_s(self, launch_s: float) -> float:
        """The part of a kernel's launch time that a step does not pay."""
        return (1.0 - self.launch_share) * launch_s


class ScaledEstimator:
    """Compiles a worker to tables with the laws of one LatencyProfile."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        if profile.laws is None:
            raise ValueError(f"profile {profile_name}: estimator scaled needs a laws section")
        self.profile_name = profile_name
        self.profile = profile
        self.laws = profile.laws

    def of_version(self, version: str) -> ScaledEstimator:
        """The estimator with the kernels of the engine's ``version``; itself where they are the profile's."""
        laws = self.laws.of_version(version) if version else self.laws
        if laws == self.laws:
            return self
        return ScaledEstimator(self.profile_name, self.profile.model_copy(update={"laws": laws}))

    def worker(self, priced: PricedWorker) -> ScaledWorker:
        """The worker's operators, not yet tabulated, for the estimator's version of the engine.

        Raises:
            InvalidParallelism: the model cannot be split so.
            ValueError: the profile has no law of the model's attention.
        """
        model, kv_dtype = priced.model, priced.kv_dtype
        part = shard(model, priced.split)
        roofline = RooflineEstimator(self.profile_name, self.profile).worker(priced)
        link = roofline.rates.link_bytes_per_s
        assert link is not None
        prefill, decode = self._attention(model, kv_dtype)
        collectives = Collectives(
            self.laws.collectives, link, roofline.rates.alpha_s, priced.hosts, *self._fused(priced),
            self._exchange(priced),
        )  # fmt: skip
        return ScaledWorker(
            model=model,
            part=part,
            laws=self.laws,
            accelerator=priced.accelerator,
            roofline=roofline,
            collectives=collectives,
            weight_dtype=priced.loaded_dtype,
            weights=weights_law(model, priced.weight_dtype),
            prefill=prefill,
            decode=decode,
            prefill_heads=prefill_heads(model, part, kv_dtype),
            decode_heads=decode_heads(model, part, kv_dtype),
            sparse=self._sparse(model, kv_dtype),
        )

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        return self.of_version(priced.engine.version)._compile(priced)

    def _compile(self, priced: PricedWorker) -> CompiledCosts:
        overhead = engine_overhead(self.profile_name, self.profile, priced.engine)
        timed = replace(self.worker(priced), launch_share=overhead.launch_share)
        seconds = with_overhead(timed.tabulate(overhead, *priced.limits), overhead, priced)
        costs = CompiledCosts(
            seconds=seconds,
            lockstep=timed.lockstep_table(seconds, overhead, priced.max_tokens),
            joules=energy_costs(priced),
            idle_w=worker_idle_w(priced.accelerator, priced.split.group_ranks),
            profile=self.profile_name,
            evidence=self.profile.evidence,
            relative_error=self.profile.relative_error,
            front_end=front_end_of(overhead),
            served=self._served(priced),
            warnings=(
                *format_warnings(priced.accelerator, priced.loaded_dtype),
                *page_warnings(priced.engine.name, priced.engine.page_size, priced.model),
                *self._warnings(timed, priced),
                *overhead.implausible(),
            ),
        )
        knows_even = law_of(self.laws.moe, timed.weights) is not None
        return with_uneven_experts(
            costs, priced.engine.experts, priced.model, priced.split, timed.routed_s, knows_even=knows_even
        )

    def _attention(self, model: ModelSpec, kv_dtype: DType) -> tuple[PrefillTerms, DecodeTerms]:
        laws = self.laws
        families = (
            (laws.prefill_attention, laws.decode_attention)
            if model.mla is None
            else (laws.mla_prefill, laws.mla_decode)
        )
        names = [law_of(family, kv_dtype) or next(iter(family), None) for family in families]
        if names[0] is None or names[1] is None:
            raise ValueError(
                f"profile {self.profile_name}: no law of {'MLA' if model.mla is not None else 'attention'}, which "
                f"{model.huggingface_id} needs"
            )
        return families[0][names[0]], families[1][names[1]]

    def _sparse(self, model: ModelSpec, kv_dtype: DType) -> SparseTerms | None:
        known = self.laws.sparse_attention
        if model.sparse_attention is None:
            return None
        if not known:
            raise ValueError(
                f"profile {self.profile_name}: no law of sparse attention, which {model.huggingface_id} needs; "
                "profile roofline prices it"
            )
        return known[law_of(known, kv_dtype) or next(iter(known))]

    def _served(self, priced: PricedWorker) -> ServedErrors | None:
        """Expected errors of served runs, by whether the measured ones include the worker's model and accelerator."""
        sheet, laws = priced.accelerator, self.laws
        ratio = sheet.memory_bandwidth_bytes_per_s / laws.memory_bandwidth_bytes_per_s
        name = laws.accelerator if abs(ratio - 1.0) <= SAME_SHEET else None
        return served_errors(priced.engine.name, name, plain_name(priced.model.huggingface_id))

    def _fused(self, priced: PricedWorker) -> tuple[Sequence[CollectiveCurve], float]:
        """Curves of the fused all-reduce and norm, and the largest payload in bytes that uses it; 0: none.

        It needs ranks within a host that share all sequences. vLLM uses it by default where its profile has it: on
        accelerators with FlashInfer kernels, up to the ranks for which it has a size.
        """
        split, curves, known = priced.split, self.laws.collectives, self.laws.fused_all_reduce
        enabled = priced.engine.fused_all_reduce
        if enabled is None:
            enabled = priced.engine.name == "vllm" and bool(known)
        if not enabled or split.tensor == 1 or split.attention_data > 1 or priced.hosts:
            return (), 0.0
        if known and split.tensor > max(curve.ranks for curve in known):
            return (), 0.0
        most = curve_for(known, split.tensor).up_to_bytes if known else None
        if most is None:
            most = FUSED_TOKENS * ACTIVATION_BYTES * priced.model.hidden_size
        return known or (curves.all_reduce if curves is not None else ()), most

    def _exchange(self, priced: PricedWorker) -> Sequence[CollectiveCurve]:
        """Curves of the experts' all-to-all, for the format of the weights or else another."""
        known = self.laws.expert_exchange
        if not priced.split.all_to_all or not known:
            return ()
        return known[law_of(known, weights_law(priced.model, priced.weight_dtype)) or next(iter(known))]

    def _warnings(self, worker: ScaledWorker, priced: PricedWorker) -> list[str]:
        laws, engine, kv_dtype, warnings = self.laws, priced.engine.name, priced.kv_dtype, []
        if engine != laws.engine:
            warnings.append(f"laws of {laws.engine} {laws.engine_version} price steps of {engine}")
        sheet = priced.accelerator
        flops = sheet_peaks(sheet)["bf16"]
        ratios = (sheet.memory_bandwidth_bytes_per_s / laws.memory_bandwidth_bytes_per_s, flops / laws.flops)
        if any(abs(ratio - 1.0) > SAME_SHEET for ratio in ratios):
            warnings.append(f"laws of {laws.accelerator} are carried over to another accelerator by its sheet")
        dense = any(
            not matrix.routed and matrix.takes(worker.weight_dtype) for matrix in matrices(worker.model, worker.part)
        )
        families = ((dense, "dense products", laws.gemm), (moe_layers(worker.model) > 0, "experts", laws.moe))
        for present, family, known in families:
            taken = law_of(known, worker.weights)
            if present and taken is None:
                warnings.append(f"no law of {family} in {worker.weights}: the roofline prices them")
            elif present and taken != worker.weights:
                warnings.append(f"no law of {family} in {worker.weights}: that of {taken} prices them")
        if kv_dtype not in (laws.prefill_attention if worker.model.mla is None else laws.mla_prefill):
            warnings.append(f"no law of attention with a KV cache of {kv_dtype}: that of another format prices it")
        for name, ranks, most in worker.collectives.beyond(worker.part.parallelism):
            warnings.append(f"no measurement of {name}s on {ranks} ranks: those on {most} price them")
        return [*warnings, *self._outside(worker)]

    def _outside(self, worker: ScaledWorker) -> list[str]:
        """Warnings of widths and heads outside the measured ranges, except products in ``SMALL``."""
        warnings = []
        for matrix in matrices(worker.model, worker.part):
            name = law_of(self.laws.gemm, worker.format_of(matrix))
            if not matrix.routed and matrix.name not in SMALL and name is not None:
                warnings += beyond(matrix.name, self.laws.gemm[name], n=matrix.outputs, k=matrix.inputs)
        warnings += beyond("prefill attention", worker.prefill, heads=worker.prefill_heads.heads)
        return warnings + beyond("decode attention", worker.decode, heads=worker.decode_heads.heads)


@register("scaled")
def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The scaled roofline with ``profile``'s laws."""
    return ScaledEstimator(profile_name, profile)
