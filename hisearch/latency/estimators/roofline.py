"""Roofline: operators at stated shares of the data sheet's peaks (``hisearch.latency.workers.roofline``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.latency.approximations import state_warnings
from hisearch.latency.costs import CompiledCosts, lockstep_costs
from hisearch.latency.estimator import ProfileEstimator, register
from hisearch.latency.estimators.step_kinds import with_step_kinds
from hisearch.latency.expert_load import with_uneven_experts
from hisearch.latency.host import with_overhead
from hisearch.latency.priced import PricedWorker
from hisearch.latency.tabulate import counted
from hisearch.latency.workers.roofline import RooflineWorker, attained_worker, format_warnings
from hisearch.specs.machines.laws import CollectiveCurves
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.pages import entries_warnings, page_warnings


@register("roofline")
class RooflineEstimator(ProfileEstimator):
    """Compiles a worker to tables with the constants of one LatencyProfile.

    collectives: measured ones between the accelerators of a host, in place of the profile's terms.
    """

    prices_shared_context = True

    def __init__(
        self, profile_name: str, profile: LatencyProfileSpec, collectives: CollectiveCurves | None = None
    ) -> None:
        super().__init__(profile_name, profile)
        self.collectives = collectives

    def worker(self, priced: PricedWorker) -> RooflineWorker:
        """The worker's operators in seconds, not yet tabulated."""
        worker = attained_worker(self.profile, priced)
        return replace(worker, collectives=replace(worker.collectives, curves=self.collectives))

    def compile(self, priced: PricedWorker) -> CompiledCosts:
        """See ``LatencyEstimator.compile``."""
        timed = self.worker(priced)
        seconds = with_overhead(timed.tabulate(*priced.limits), self.overhead(priced), priced)
        lockstep = None
        if timed.split.attention_data > 1:
            shared_s = np.minimum(counted(timed.shared_s, priced.max_tokens), seconds.token_s)
            lockstep = lockstep_costs(seconds.token_s, shared_s, ())
            multiprocessors = priced.accelerator.multiprocessors
            lockstep = with_step_kinds(
                lockstep, priced, timed.routed_s, timed.collectives, timed.rates, multiprocessors
            )
        warnings = (
            *format_warnings(priced.accelerator, priced.model, priced.loaded_dtype),
            *page_warnings(priced.engine.name, priced.engine.page_size, priced.model),
            *state_warnings(priced.engine, priced.model, fitted=False),
            *entries_warnings(priced.engine.name, priced.kv_dtype, priced.model),
        )
        costs = self.costs(priced, seconds, lockstep=lockstep, warnings=warnings)
        return with_uneven_experts(costs, priced.engine.experts, priced.model, timed.split, timed.routed_s)
