"""Scaled roofline: each operator family by its fitted law (``hisearch.latency.laws``), on the accelerator's own sheet.

Notation (per layer and rank; g attention groups, so that FFNs see m = g * T tokens)
    token_s[T] = sum over dense matrices of gemm_s(m) + moe_s(m) + elementwise operators + collectives
               + layers * min(prefill launch, decode launch)
    sequence_s[S] = LM head + sampling + all-gather of the logits
    chunk_s    = prefill_s of one chunk, less the launch that token_s has
    decode_s   = decode_s of the batch, likewise

Norms, rotary embedding, activation and sampling have no law: they take the profile's roofline terms, as do formats that
were not measured, with a warning. Steps for which the engine has CUDA graphs are priced at the graph's size, longer
ones add ``layers * eager_layer_s``; of kernels' launches a step sees ``launch_share``. Energy is the roofline's.
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

#: Elementwise operators that an engine's attention, or its all-reduce, does on the way: TensorRT-LLM's attention
#: operator applies rotary embeddings and writes the KV, its all-reduce adds the residual and normalises.
IN_ATTENTION: dict[str, set[str]] = {"trtllm": {"rotary_kv_write"}}
#: What the block of sparse attention was measured with, whatever the engine.
IN_SPARSE_BLOCK = {"rotary_kv_write"}
IN_ALL_REDUCE: dict[str, set[str]] = {"trtllm": {"norms"}}

#: Tokens of a step up to which SGLang's fused all-reduce is taken (``FUSE_ALLREDUCE_MAX_BATCH_SIZE``).
FUSED_TOKENS = 2048

#: Tokens up to which engines run shared experts beside the routed ones, on a stream of their own (vLLM's threshold;
#: SGLang's is 1,024).
BESIDE_TOKENS = 256

#: Products whose activations come in 16 bits where their scale is only found in a step: attention cannot write narrower
#: ones at a scale that it does not know.
QUANTISED_DISAGGREGATED = frozenset({"qkv_proj", "o_proj", "gate_up_proj", "down_proj"})

#: Products whose widths no table need hold: each is some microseconds.
SMALL = frozenset({"router", "linear_scalar_proj"})

#: Deviation of memory bandwidth or peak from which a profile is of another accelerator.
SAME_SHEET = 0.02


@dataclass(frozen=True)
class ScaledWorker:
    """One worker's operators by their laws; methods take arrays and return seconds.

    roofline: the same worker at the profile's roofline terms, for what has no law.
    weight_dtype: format of the weights; weights: its name, a key of ``FORMATS``.
    launch_share: of the kernels' launch times that a step sees.
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
                mixed = shared if matrix.name.startswith("shared_") else total
                mixed += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            routed = moe_layers(self.model) * self.experts_s(tokens)
            total += np.where(tokens <= BESIDE_TOKENS, np.maximum(routed, shared), routed + shared)
        split = self.part.parallelism
        normed = self.normalised(tokens)
        for op in self.elementwise_ops():
            total += np.where(normed & (op.name == "norms"), 0.0, op.layers * self.elementwise_s(op, tokens))
        return total + self.collectives.step_s(split, self.model, tokens)

    def normalised(self, tokens: F8) -> npt.NDArray[np.bool_]:
        """Whether all-reduces of steps of ``tokens`` do the norms on the way."""
        return self.collectives.normalises(ACTIVATION_BYTES * self.model.hidden_size * tokens)

    def products(self) -> list[Matrix]:
        """Matrices as this version of the engine multiplies by them, those of linear attention's inputs in parts."""
        found, linear = matrices(self.model, self.part), self.model.linear_attention
        if linear is None or self.laws.linear_inputs == 2:
            return found
        heads = self.part.linear_value_heads
        apart = {"linear_in_proj": heads * linear.value_head_dim, "linear_scalar_proj": heads}
        return [
            replace(matrix, outputs=outputs)
            for matrix in found
            for outputs in (matrix.outputs - apart.get(matrix.name, 0), apart.get(matrix.name, 0))
            if outputs
        ]

    def shared_s(self, tokens: F8) -> F8:
        """Of ``token_s``, what all attention groups of a stage do together; ``tokens`` of one, the others alike."""
        split = self.part.parallelism
        total = np.zeros_like(tokens)
        for matrix in self.products():
            if not matrix.routed and matrix.token_groups > 1:
                total += matrix.layers * self.product_s(matrix, tokens * matrix.token_groups)
        if moe_layers(self.model):
            total += moe_layers(self.model) * self.experts_s(tokens)
        return total + self.collectives.shared_s(split, self.model, ACTIVATION_BYTES * self.model.hidden_size * tokens)

    def routed_s(self, tokens: F8) -> F8:
        """Of ``token_s``, routed experts alone."""
        return np.asarray(moe_layers(self.model) * self.experts_s(tokens))

    def lockstep_table(self, costs: StepCosts, overhead: EngineOverhead, limit: int) -> LockstepCosts | None:
        """``costs.token_s`` taken apart; None where there is one attention group."""
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
        """Format of a dense matrix, as laws name it."""
        if matrix.takes(self.weight_dtype):
            return self.weights
        return "fp32" if matrix.single else "bf16"

    def product_s(self, matrix: Matrix, tokens: F8) -> F8:
        """One layer's product with a dense matrix, by its format's law or the roofline.

        Without a law of 32 bits, that of 16 prices them at the accelerator's peak for them.
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
        if (passes := self.laws.quantise) is not None and name == "fp8" and matrix.name in QUANTISED_DISAGGREGATED:
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
        sheet, one, windowed = self.sheet("bf16"), 1.0, window_layers(self.model)
        full = self.model.layers - linear_layers(self.model) - windowed
        seconds = full * (prefill_s(self.prefill, sheet, self.prefill_heads, one, new, cached) - self.launch_s)
        if windowed:
            window = float(self.model.sliding_window_tokens)
            within = prefill_s(self.prefill, sheet, self.prefill_heads, one, new, cached, window)
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
        """What decodes add to steps with prompts, on the octaves of ``StepCosts``; None: as by themselves."""
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
        """The accelerator's figures for operands whose peak is that of ``rate``, at the clock that it holds."""
        peaks, laws = sheet_peaks(self.accelerator), self.laws
        flops = laws.clock_share * peaks.get(rate, peaks["bf16"])
        return Sheet(laws.multiprocessors, flops, self.accelerator.memory_bandwidth_bytes_per_s)

    def tabulate(self, overhead: EngineOverhead, max_tokens: int, max_sequences: int, max_context: int) -> StepCosts:
        """All of the above on the knots of ``StepCosts``, rising where laws rise; without host work."""
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
        """``token_s`` of 0 … ``limit`` tokens, padded to CUDA graphs, with launches one by one beyond the largest."""
        graphs = overhead.graph_batches
        table = rising(self.token_s, limit, graphs)
        if graphs:
            table[graphs[-1] + 1 :] += self.model.layers * overhead.eager_layer_s
        return table

    def elementwise_ops(self) -> list[Operator]:
        """Elementwise operators that are kernels of their own; of routed experts only where no law covers them."""
        tensor = self.part.parallelism.tensor
        # Fused kernels reach peers within a host; between hosts NCCL reduces, and a kernel of its own normalises.
        reduces = tensor > 1 and not self.collectives.spans_hosts(tensor)
        inside = (
            IN_ATTENTION.get(self.laws.engine, set())
            | (IN_SPARSE_BLOCK if self.sparse is not None else set())
            | (IN_ALL_REDUCE.get(self.laws.engine, set()) if reduces else set())
        )
        found = [op for op in self.roofline.token_ops if op.family == "elementwise" and op.name not in inside]
        if law_of(self.laws.moe, self.weights) is None:
            return found
        shared = 3.0 * self.part.shared_intermediate * self.part.parallelism.ffn_groups * ACTIVATION_BYTES
        kept = [op for op in found if not op.name.startswith("expert_")]
        activations = [op for op in found if op.name == "expert_activation" and shared]
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
        """What a step does not see of a kernel's launch."""
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
        """With the kernels of the engine's ``version``; itself where they are the profile's own."""
        laws = self.laws.of_version(version) if version else self.laws
        if laws == self.laws:
            return self
        return ScaledEstimator(self.profile_name, self.profile.model_copy(update={"laws": laws}))

    def worker(self, priced: PricedWorker) -> ScaledWorker:
        """The worker's operators, not yet tabulated, of the estimator's own version of the engine.

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
        """Errors of served runs to expect, by whether the worker's model and accelerator were among them."""
        sheet, laws = priced.accelerator, self.laws
        ratio = sheet.memory_bandwidth_bytes_per_s / laws.memory_bandwidth_bytes_per_s
        own = laws.accelerator if abs(ratio - 1.0) <= SAME_SHEET else None
        return served_errors(priced.engine.name, own, plain_name(priced.model.huggingface_id))

    def _fused(self, priced: PricedWorker) -> tuple[Sequence[CollectiveCurve], float]:
        """Curves of the all-reduce that normalises on the way, and bytes up to which it is taken; none: 0.

        Its ranks lie where peer links join them and share all sequences. VLLM takes it by itself where its profile has
        it: on accelerators that FlashInfer's has kernels for, and no more ranks than it has a size for.
        """
        split, curves, known = priced.split, self.laws.collectives, self.laws.fused_all_reduce
        asked = priced.engine.fused_all_reduce
        if asked is None:
            asked = priced.engine.name == "vllm" and bool(known)
        if not asked or split.tensor == 1 or split.attention_data > 1 or priced.hosts:
            return (), 0.0
        if known and split.tensor > max(curve.ranks for curve in known):
            return (), 0.0
        most = curve_for(known, split.tensor).up_to_bytes if known else None
        if most is None:
            most = FUSED_TOKENS * ACTIVATION_BYTES * priced.model.hidden_size
        return known or (curves.all_reduce if curves is not None else ()), most

    def _exchange(self, priced: PricedWorker) -> Sequence[CollectiveCurve]:
        """Curves of the all-to-all of experts' tokens, for the format of the weights or, failing that, another's."""
        known = self.laws.expert_exchange
        if not priced.split.all_to_all or not known:
            return ()
        return known[law_of(known, weights_law(priced.model, priced.weight_dtype)) or next(iter(known))]

    def _warnings(self, worker: ScaledWorker, priced: PricedWorker) -> list[str]:
        laws, engine, kv_dtype, found = self.laws, priced.engine.name, priced.kv_dtype, []
        if engine != laws.engine:
            found.append(f"laws of {laws.engine} {laws.engine_version} price steps of {engine}")
        sheet = priced.accelerator
        flops = sheet_peaks(sheet)["bf16"]
        ratios = (sheet.memory_bandwidth_bytes_per_s / laws.memory_bandwidth_bytes_per_s, flops / laws.flops)
        if any(abs(ratio - 1.0) > SAME_SHEET for ratio in ratios):
            found.append(f"laws of {laws.accelerator} are carried over to another accelerator by its sheet")
        dense = any(
            not matrix.routed and matrix.takes(worker.weight_dtype) for matrix in matrices(worker.model, worker.part)
        )
        families = ((dense, "dense products", laws.gemm), (moe_layers(worker.model) > 0, "experts", laws.moe))
        for present, family, known in families:
            taken = law_of(known, worker.weights)
            if present and taken is None:
                found.append(f"no law of {family} in {worker.weights}: the roofline prices them")
            elif present and taken != worker.weights:
                found.append(f"no law of {family} in {worker.weights}: that of {taken} prices them")
        if kv_dtype not in (laws.prefill_attention if worker.model.mla is None else laws.mla_prefill):
            found.append(f"no law of attention with a KV cache of {kv_dtype}: that of another format prices it")
        for name, ranks, most in worker.collectives.beyond(worker.part.parallelism):
            found.append(f"no measurement of {name}s on {ranks} ranks: those on {most} price them")
        return [*found, *self._outside(worker)]

    def _outside(self, worker: ScaledWorker) -> list[str]:
        """Widths and heads beyond what was measured; what is in ``SMALL`` is too small to matter."""
        found = []
        for matrix in matrices(worker.model, worker.part):
            name = law_of(self.laws.gemm, worker.format_of(matrix))
            if not matrix.routed and matrix.name not in SMALL and name is not None:
                found += beyond(matrix.name, self.laws.gemm[name], n=matrix.outputs, k=matrix.inputs)
        found += beyond("prefill attention", worker.prefill, heads=worker.prefill_heads.heads)
        return found + beyond("decode attention", worker.decode, heads=worker.decode_heads.heads)


@register("scaled")
def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The scaled roofline with ``profile``'s laws."""
    return ScaledEstimator(profile_name, profile)
