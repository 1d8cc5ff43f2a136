"""External predictor: aiconfigurator-core's steps (extra ``aic``) by its own tables and formulas, as ``StepCosts``.

    token_s[T] = token_s(T) on its grid, linear between
    chunk rate = chunk_s(P, cached) / pairs,  decode_s(n, c) = decode_s(n, c / n - 1)

The package prices no host work: that is the profile's, as with the other laws. Energy is the roofline's.
"""

from __future__ import annotations

import numpy as np

from hisearch.latency.aic import AicQuestion, AicTables, aic_tables, aic_version
from hisearch.latency.costs import CompiledCosts, StepCosts
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.host import with_overhead
from hisearch.latency.laws.model import weights_law
from hisearch.latency.measured.curves import Curve, Grid
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import moe_layers, shard
from hisearch.latency.sheets import named_as
from hisearch.latency.tabulate import counted, device_costs, table_axes
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.wording import format_percent

#: The package's modes of dense products, by format of the weights. fp4 (MXFP4) checkpoints state theirs.
GEMM_MODES: dict[str, str | None] = {
    "bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4", "int4": "int4_wo", "fp4": None,
}  # fmt: skip
KV_MODES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "int8": "int8"}
#: Share of a typical step priced by formulas, above which a result warns.
WORTH_SAYING = 0.1


@register("aic")
class AicEstimator(ProfileEstimator):
    """Compiles a worker to tables from the package's results."""

    def __init__(self, profile_name: str, profile: LatencyProfileSpec) -> None:
        if profile.aic is None:
            raise ValueError(f"profile {profile_name}: estimator aic needs an aic section")
        super().__init__(profile_name, profile)
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
        self.refuse_heads(priced)
        overhead = self.overhead(priced)
        longest = min(priced.max_context_tokens, priced.model.max_context_tokens)
        answers = aic_tables(self.question(priced), priced.max_tokens, priced.max_sequences, longest)
        device = _tables(answers, priced)
        warnings = [f"steps are priced by aiconfigurator-core {aic_version()}"]
        if answers.calculated > WORTH_SAYING:
            warnings.append(
                f"{format_percent(answers.calculated)} of a typical step by its formulas, not by its measurements"
            )
        return self.costs(priced, with_overhead(device, overhead, priced), warnings=tuple(warnings))


def _tables(answers: AicTables, priced: PricedWorker) -> StepCosts:
    axes = table_axes(*priced.limits, priced.model.max_context_tokens)
    mean = np.maximum(axes.context / axes.sequences - 1.0, 0.0)
    return device_costs(
        axes,
        token_s=counted(Curve(answers.tokens, answers.token_s), priced.max_tokens),
        sequence_s=np.zeros(2),
        chunk_s=Grid((answers.tokens, answers.cached), answers.chunk_s)(axes.new, axes.cached),
        decode_s=Grid((answers.sequences, answers.mean), answers.decode_s)(axes.sequences, mean),
    )
