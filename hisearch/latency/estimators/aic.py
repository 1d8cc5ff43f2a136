"""External predictor: aiconfigurator-core's steps (extra ``aic``) by its own tables and formulas, as ``StepCosts``.

    token_s[T] = token_s(T) on its grid, linear between
    chunk rate = chunk_s(P, cached) / pairs,  decode_s(n, c) = decode_s(n, c / n - 1)

The package prices no host work: that is the profile's, as with the other laws. Energy is the roofline's.
"""

from __future__ import annotations

import numpy as np

from hisearch.hardware.power import worker_idle_w
from hisearch.latency.aic import AicQuestion, AicTables, aic_tables, aic_version
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.estimator import LatencyEstimator, register
from hisearch.latency.estimators.roofline import energy_costs, engine_overhead
from hisearch.latency.host import front_end_of, with_overhead
from hisearch.latency.knots import knots_up_to
from hisearch.latency.laws.model import weights_law
from hisearch.latency.measured.curves import Curve, Grid
from hisearch.latency.operators import attention_pairs
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import moe_layers, shard
from hisearch.latency.sheets import named_as
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.wording import format_percent

#: The package's modes of dense products, by format of the weights. fp4 (MXFP4) checkpoints state theirs.
GEMM_MODES: dict[str, str | None] = {
    "bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo", "fp4": None,
}  # fmt: skip
KV_MODES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "int8": "int8"}
#: Share of a typical step priced by formulas, above which a result warns.
WORTH_SAYING = 0.1


class AicEstimator:
    """Compiles a worker to tables from the package's results."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        if profile.aic is None:
            raise ValueError(f"profile {profile_name}: estimator aic needs an aic section")
        self.profile_name = profile_name
        self.profile = profile
        self.names = profile.aic

    def question(self, priced: PricedWorker) -> AicQuestion:
        """The worker in the package's names.

        Raises:
            InvalidParallelism: the model cannot be split so.
            ValueError: the profile or the package has no name for the accelerator or a format.
        """
        shard(priced.model, priced.split)
        board = named_as(priced.accelerator, self.names.systems)
        if board is None:
            known = ", ".join(self.names.systems)
            raise ValueError(
                f"profile {self.profile_name}: aic.systems has no name of this accelerator; it has {known}"
            )
        weights = weights_law(priced.model, priced.weight_dtype)
        if weights not in GEMM_MODES:
            raise ValueError(f"profile {self.profile_name}: no mode of aiconfigurator for weights in {weights}")
        if priced.kv_dtype not in KV_MODES:
            raise ValueError(
                f"profile {self.profile_name}: no mode of aiconfigurator for a KV cache of {priced.kv_dtype}"
            )
        split, name = priced.split, priced.model.huggingface_id
        experts = moe_layers(priced.model) > 0
        return AicQuestion(
            model=self.names.models.get(name, name),
            system=self.names.systems[board],
            backend=priced.engine.name,
            backend_version=self.names.versions.get(priced.engine.name),
            tensor=split.tensor,
            attention_data=split.attention_data,
            pipeline=split.pipeline,
            expert_tensor=split.expert_tensor if experts else 1,
            expert=split.expert,
            gemm=GEMM_MODES[weights],
            moe=GEMM_MODES[weights] if experts else None,
            kv=KV_MODES[priced.kv_dtype],
        )

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        overhead = engine_overhead(self.profile_name, self.profile, priced.engine)
        longest = min(priced.max_context_tokens, priced.model.max_context_tokens)
        answers = aic_tables(self.question(priced), priced.max_tokens, priced.max_sequences, longest)
        device = _tables(answers, priced, longest)
        warnings = [f"steps are priced by aiconfigurator-core {aic_version()}"]
        if answers.calculated > WORTH_SAYING:
            warnings.append(
                f"{format_percent(answers.calculated)} of a typical step by its formulas, not by its measurements"
            )
        return CompiledCosts(
            seconds=with_overhead(device, overhead, priced),
            joules=energy_costs(priced),
            idle_w=worker_idle_w(priced.accelerator, priced.split.group_ranks),
            profile=self.profile_name,
            evidence=self.profile.evidence,
            relative_error=self.profile.relative_error,
            front_end=front_end_of(overhead),
            warnings=tuple(warnings),
        )


def _tables(answers: AicTables, priced: PricedWorker, longest: int) -> StepCosts:
    tokens = np.arange(1.0, priced.max_tokens + 1.0)
    new = np.maximum(knots_up_to(priced.max_tokens).astype(np.float64), 1.0)[:, None]
    cached = knots_up_to(longest).astype(np.float64)[None, :]
    sequences = knots_up_to(max(priced.max_sequences, 2)).astype(np.float64)[:, None]
    context = knots_up_to(priced.max_context_tokens).astype(np.float64)[None, :]
    chunk_s = Grid((answers.tokens, answers.cached), answers.chunk_s)(new, cached)
    mean = np.maximum(context / np.maximum(sequences, 1.0) - 1.0, 0.0)
    decode_s = Grid((answers.sequences, answers.mean), answers.decode_s)(np.maximum(sequences, 1.0), mean)
    decode_s[0, :] = 0.0
    return StepCosts(
        host_s=0.0,
        host_per_sequence_s=0.0,
        token_s=np.concatenate(([0.0], Curve(answers.tokens, answers.token_s)(tokens))),
        sequence_s=np.zeros(2),
        chunk_rate=np.ascontiguousarray(chunk_s / attention_pairs(new, cached)),
        decode_s=np.ascontiguousarray(decode_s),
    )


@register("aic")
def build(profile_name: str, profile: LatencyProfileSpec) -> LatencyEstimator:
    """The estimator that queries aiconfigurator-core, with the names in ``profile``."""
    return AicEstimator(profile_name, profile)
