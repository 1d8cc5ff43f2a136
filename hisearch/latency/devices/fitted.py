"""Accelerators by their fitted laws, where a profile has them (``hisearch.latency.workers.scaled``).

The operators of a step are those of the scaled roofline. Sliding-window attention, and experts with stated routing,
have no fitted law here and keep the roofline's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.laws import Law
from hisearch.latency.devices.work import SOFTMAX, Work, WorkKind
from hisearch.latency.estimators.auto import AutoEstimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.laws.attention import decode_s, prefill_s
from hisearch.latency.laws.model import law_of
from hisearch.latency.operators import Operator
from hisearch.latency.parameters import Matrix, lm_head, matrices
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, window_layers
from hisearch.latency.workers.scaled import ScaledWorker
from hisearch.specs.base import DType, EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec


def profile_at_hand(
    profile_name: str, profile: LatencyProfileSpec, accelerator: AcceleratorSpec, engine: EngineName
) -> tuple[str, LatencyProfileSpec]:
    """The profile that an automatic profile chooses; other profiles are returned unchanged."""
    if profile.estimator != "auto":
        return profile_name, profile
    chosen = AutoEstimator(profile_name, profile).chosen(accelerator, engine)
    if chosen is None:
        return profile_name, profile
    return chosen, Catalogue(Path.cwd()).get("LatencyProfile", chosen).spec


def fitted_worker(
    model: ModelSpec,
    accelerator: AcceleratorSpec,
    profile: LatencyProfileSpec,
    split: Parallelism,
    weight_dtype: DType | None,
    kv_dtype: DType,
    engine: EngineName,
) -> ScaledWorker | None:
    """The worker's operators by fitted laws; None where the profile has none.

    Raises:
        ValueError: the profile has no law of the model's attention.
    """
    if profile.estimator != "scaled" or accelerator.systolic is not None:
        return None
    # Operators do not depend on the limits of a step.
    priced = PricedWorker(model, accelerator, split, weight_dtype, kv_dtype, EngineSpec(name=engine), 1, 1, 1)
    worker = ScaledEstimator("fitted", profile).worker(priced)
    overhead = profile.engines.get(engine)
    return replace(worker, launch_share=overhead.launch_share) if overhead is not None else worker


@dataclass(frozen=True)
class FittedLaw:
    """Fitted laws of one rank's operators; ``other``: the law of the rest. stated: experts have stated routing."""

    worker: ScaledWorker
    other: Law
    stated: bool = False

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``."""
        return self.other.knows(kind)

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        worker = self.worker
        if work.kind == "product":
            return self._product_s(work)
        if work.kind == "elementwise":
            op = self._elementwise.get(work.name)
            if work.name == SOFTMAX:
                return self.other.cost(work)
            if op is None:
                return np.zeros_like(work.units)
            within = work.name == "norms" and worker.normalised(work.units)
            return np.where(within, 0.0, worker.elementwise_s(op, work.units))
        if window_layers(worker.model):
            return self.other.cost(work)
        sheet, hidden_s = worker.sheet("bf16"), (1.0 - worker.launch_share) * worker.launch_s
        if work.kind == "decode_attention":
            sequences = np.maximum(work.units, 1e-6)
            return decode_s(worker.decode, sheet, worker.decode_heads, sequences, work.context) - hidden_s
        seconds = prefill_s(worker.prefill, sheet, worker.prefill_heads, 1.0, work.units, work.context)
        rebuilt = work.context * worker.roofline.attention.decompress_flops / (sheet.flops * worker.prefill.flops)
        return np.asarray(seconds + rebuilt - hidden_s)

    def _product_s(self, work: Work) -> F8:
        matrix = self._matrices[work.name]
        if not matrix.routed:
            return self.worker.product_s(matrix, work.units * matrix.token_groups)
        if self.stated or law_of(self.worker.laws.moe, self.worker.weights) is None:
            return self.other.cost(work)
        # The law covers both products of a layer's experts: the first carries all of it.
        first_product = work.name == "experts_gate_up_proj"
        return self.worker.experts_s(work.units) if first_product else np.zeros_like(work.units)

    @cached_property
    def _matrices(self) -> dict[str, Matrix]:
        model, part = self.worker.model, self.worker.part
        return {matrix.name: matrix for matrix in [*matrices(model, part), lm_head(model, part)]}

    @cached_property
    def _elementwise(self) -> dict[str, Operator]:
        token_ops = self.worker.elementwise_ops()
        return {op.name: op for op in [*token_ops, *self.worker.roofline.sequence_ops] if op.family == "elementwise"}
