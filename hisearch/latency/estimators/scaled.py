"""Scaled roofline: operator families by their fitted laws (``hisearch.latency.workers.scaled``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from hisearch.hardware.peaks import sheet_peaks
from hisearch.latency.approximations import state_warnings
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.estimators.step_kinds import with_step_kinds
from hisearch.latency.expert_load import with_uneven_experts
from hisearch.latency.host import with_overhead
from hisearch.latency.laws.collectives import curve_for
from hisearch.latency.laws.model import decode_heads, law_of, prefill_heads, weights_law, windowed_heads
from hisearch.latency.laws.ranges import beyond
from hisearch.latency.matrices.heads import LayerHeads, full_heads, window_heads
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.latency.parameters import matrices
from hisearch.latency.priced import PricedWorker
from hisearch.latency.served_errors import ServedErrors, plain_name, served_errors
from hisearch.latency.sharding import expert_hidden, moe_layers, shard
from hisearch.latency.workers.roofline import attained_worker, format_warnings
from hisearch.latency.workers.scaled import SMALL, ScaledWorker
from hisearch.specs.base import DType
from hisearch.specs.machines.laws import (
    CollectiveCurve,
    DecodeTerms,
    EntriesTerms,
    HeadLaws,
    PrefillTerms,
    SparseTerms,
)
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import entries_warnings, page_warnings
from hisearch.specs.wording import format_percent

#: Most tokens of a step for which SGLang fuses the all-reduce (``FUSE_ALLREDUCE_MAX_BATCH_SIZE``).
FUSED_TOKENS = 2048

#: Widest heads of the law of usual heads (``latency.laws.attention.relative_rate``).
WIDEST_HEAD = 256

#: Relative deviation of memory bandwidth or peak beyond which a profile is of another accelerator.
SAME_SHEET = 0.02


#: Median error of sparse attention's law beyond which a warning says it.
WORTH_SAYING = 0.2


@register("scaled")
class ScaledEstimator(ProfileEstimator):
    """Compiles a worker to tables with the laws of one LatencyProfile."""

    prices_shared_context = True

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        if profile.laws is None:
            raise ValueError(f"profile {profile_name}: estimator scaled needs a laws section")
        super().__init__(profile_name, profile)
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
        roofline = attained_worker(self.profile, priced)
        prefill, decode = self._attention(model, kv_dtype)
        own, within = self._other_heads(model, full_heads(model, part), kv_dtype, windowed=False), None
        if model.window_heads is not None:
            window_law = self._other_heads(model, window_heads(model, part), kv_dtype, windowed=True)
            within = (window_law.prefill, window_law.decode) if window_law is not None else (prefill, decode)
        if own is not None:
            prefill, decode = own.prefill, own.decode
        fused, fused_bytes = self._fused(priced)
        # Curves of bridged cards were measured with what lies between their groups.
        bridged = roofline.collectives.hosts if self.laws.collectives is None else None
        collectives = replace(
            roofline.collectives, curves=self.laws.collectives, hosts=priced.hosts or bridged, fused=fused,
            fused_bytes=fused_bytes, exchange=self._exchange(priced),
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
            window_heads=windowed_heads(model, part, kv_dtype),
            window_terms=within,
            entries=self._entries(model, kv_dtype),
        )

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        return self.of_version(priced.engine.version)._compile(priced)

    def _compile(self, priced: PricedWorker) -> CompiledCosts:
        overhead = self.overhead(priced)
        timed = replace(self.worker(priced), launch_share=overhead.launch_share)
        seconds = with_overhead(timed.tabulate(overhead, *priced.limits), overhead, priced)
        lockstep = timed.lockstep_table(seconds, overhead, priced.max_tokens)
        if lockstep is not None:
            rates, multiprocessors = timed.roofline.rates, self.laws.multiprocessors
            lockstep = with_step_kinds(lockstep, priced, timed.routed_s, timed.collectives, rates, multiprocessors)
        costs = self.costs(
            priced,
            seconds,
            lockstep=lockstep,
            served=self._served(priced),
            warnings=(
                *format_warnings(priced.accelerator, priced.model, priced.loaded_dtype),
                *page_warnings(priced.engine.name, priced.engine.page_size, priced.model),
                *state_warnings(priced.engine, priced.model, fitted=timed.linear_law is not None),
                *entries_warnings(priced.engine.name, priced.kv_dtype, priced.model),
                *self._warnings(timed, priced),
                *overhead.implausible(),
            ),
        )
        knows_even = law_of(self.laws.moe, timed.experts_format) is not None
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

    def _other_heads(self, model: ModelSpec, heads: LayerHeads, kv_dtype: DType, *, windowed: bool) -> HeadLaws | None:
        """The law of a kind of layer whose heads have kernels of their own; None: that of usual heads."""
        if model.window_heads is None:
            return None
        known = {
            law.kv_dtype: law
            for law in self.laws.other_heads
            if law.head_dim == heads.key_dim and (law.window_tokens > 0) == windowed
        }
        return known.get(kv_dtype, known.get("bf16"))

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

    def _entries(self, model: ModelSpec, kv_dtype: DType) -> EntriesTerms | None:
        """The law of attention that reads entries or blocks; None where there is none, and the roofline prices it."""
        if model.compressed_attention is None and model.block_sparse is None:
            return None
        kind: Literal["compressed", "block_sparse"] = (
            "compressed" if model.compressed_attention is not None else "block_sparse"
        )
        known = self.laws.entries_attention.get(kind, {})
        return known[law_of(known, kv_dtype) or next(iter(known))] if known else None

    def _served(self, priced: PricedWorker) -> ServedErrors | None:
        """Expected errors of served runs, by whether the measured ones include the worker's model and accelerator."""
        sheet, laws = priced.accelerator, self.laws
        ratio = sheet.memory_bandwidth_bytes_per_s / laws.memory_bandwidth_bytes_per_s
        name = laws.accelerator if abs(ratio - 1.0) <= SAME_SHEET else None
        return served_errors(priced.engine.name, name, plain_name(priced.model.huggingface_id))

    def _fused(self, priced: PricedWorker) -> tuple[Sequence[CollectiveCurve], float]:
        """Curves of the fused all-reduce and norm, and the largest payload in bytes that uses it; 0: none.

        It needs ranks within a host that share all sequences, or prompts. vLLM uses it by default where its profile has
        it: on accelerators with FlashInfer kernels, up to the ranks for which it has a size.
        """
        split, curves, known = priced.split, self.laws.collectives, self.laws.fused_all_reduce
        enabled = priced.engine.fused_all_reduce
        if enabled is None:
            enabled = priced.engine.name == "vllm" and bool(known)
        spans_bridges = priced.accelerator.peer_ranks is not None and split.tensor > priced.accelerator.peer_ranks
        if (
            not enabled
            or split.tensor == 1
            or split.attention_data > priced.prompt_ranks
            or priced.hosts
            or spans_bridges
        ):
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
        held = matrices(worker.model, worker.part)
        dense = {worker.format_of(m): None for m in held if not m.routed and m.takes(worker.weight_dtype)}
        routed = [worker.experts_format] if moe_layers(worker.model) else []
        for formats, family, known in ((dense, "dense products", laws.gemm), (routed, "experts", laws.moe)):
            for stored in formats:
                taken = law_of(known, stored)
                if taken is None:
                    warnings.append(f"no law of {family} in {stored}: the roofline prices them")
                elif taken != stored:
                    warnings.append(f"no law of {family} in {stored}: that of {taken} prices them")
        if worker.roofline.attention.entries:
            warnings += _entries_warnings(worker)
        elif kv_dtype not in (laws.prefill_attention if worker.model.mla is None else laws.mla_prefill):
            warnings.append(f"no law of attention with a KV cache of {kv_dtype}: that of another format prices it")
        warnings += self._unknown_heads(worker, kv_dtype)
        for name, ranks, most in worker.collectives.beyond(worker.part.parallelism):
            warnings.append(f"no measurement of {name}s on {ranks} ranks: those on {most} price them")
        return [*warnings, *self._outside(worker)]

    def _unknown_heads(self, worker: ScaledWorker, kv_dtype: DType) -> Iterator[str]:
        """Warnings of widths that neither the law of usual heads nor one of their own covers."""
        model, part = worker.model, worker.part
        if model.mla is not None:
            return
        kinds = [(full_heads(model, part), False)]
        kinds += [(window_heads(model, part), True)] if model.window_heads is not None else []
        for heads, windowed in kinds:
            law = self._other_heads(model, heads, kv_dtype, windowed=windowed)
            if law is None and heads.key_dim > WIDEST_HEAD:
                yield f"no law of attention with heads of {heads.key_dim}: that of {WIDEST_HEAD} prices them"
            elif law is not None and law.kv_dtype != kv_dtype:
                yield f"no law of attention with heads of {heads.key_dim} and a KV cache of {kv_dtype}: that of " + (
                    f"{law.kv_dtype} prices it"
                )

    def _experts_outside(self, worker: ScaledWorker) -> list[str]:
        """Warnings of routed experts in a latent, or without a gate, outside the measured ranges."""
        model, name = worker.model, law_of(self.laws.moe, worker.weights)
        if model.moe is None or name is None or (not model.moe.latent_size and model.gated_ffn):
            return []
        sizes = {"hidden": expert_hidden(model), "experts": model.moe.experts, "per_token": model.moe.experts_per_token}
        return beyond("experts", self.laws.moe[name], **sizes)

    def _outside(self, worker: ScaledWorker) -> list[str]:
        """Warnings of widths and heads outside the measured ranges, except products in ``SMALL``."""
        warnings = []
        for matrix in matrices(worker.model, worker.part):
            name = law_of(self.laws.gemm, worker.format_of(matrix))
            if not matrix.routed and not matrix.tensor_cores and matrix.name not in SMALL and name is not None:
                warnings += beyond(matrix.name, self.laws.gemm[name], n=matrix.outputs, k=matrix.inputs)
        warnings += self._experts_outside(worker)
        if worker.roofline.attention.entries:
            return warnings
        warnings += beyond("prefill attention", worker.prefill, heads=worker.prefill_heads.heads)
        warnings += beyond("decode attention", worker.decode, heads=worker.decode_heads.heads)
        if worker.window_terms is not None and worker.window_heads is not None:
            for phase, terms in zip(("prefill", "decode"), worker.window_terms, strict=True):
                warnings += beyond(f"{phase} attention of windows", terms, heads=worker.window_heads.heads)
        return warnings


def _entries_warnings(worker: ScaledWorker) -> list[str]:
    """Warnings of attention that reads entries or blocks."""
    terms = worker.entries
    if terms is None:
        return ["no law of compressed or block-sparse attention: the roofline prices it"]
    if terms.error is None or terms.error.median <= WORTH_SAYING:
        return []
    decodes, prompts = terms.error.decode_median or 0.0, terms.error.prefill_median or 0.0
    return [
        f"the law of sparse attention is off by {format_percent(decodes)} of measured decodes and "
        f"{format_percent(prompts)} of prompts, in the median"
    ]
