"""A compiled deployment, to be simulated repeatedly: on other seeds, at other loads, with another plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.hardware.price_book import PriceBook
from hisearch.hardware.prices import CostBreakdown, PoolPrice, mean_cost
from hisearch.score.classes import term_without_requests
from hisearch.score.evaluate import Score, evaluate
from hisearch.score.steady_state import Stretch
from hisearch.score.terms import RejectionCheck, check_to_dict, of_model
from hisearch.search.evaluate.sustained import score_measured
from hisearch.simulate.plans.fleet import FleetPlan, ServedModel
from hisearch.simulate.plans.models import models_of_requests, over_windows, window_tokens
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.simulate.results.parts import of_model as part_of_model
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolved import Hardware
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.traces.compiled import CompiledTrace

#: An SLO that every simulation meets: scored against where none is given. Not valid as a document.
NO_SLO = SloSpec.model_construct(terms=[], max_rejected_fraction=1.0, models={})

#: Figures that mean nothing without an SLO.
_SLO_FIGURES = frozenset({"goodput_rps", "attainment"})

#: An instant transfer.
_AT_ONCE = TransferLaw()


def slo_for(models: Sequence[ServedModel], slo: str | Path | SloSpec | None, catalogue: Catalogue) -> SloSpec | None:
    """The SLO of a deployment of these models; None where none is given.

    Args:
        models: served by the deployment.
        slo: by name, path, phrase (``specs.studies.slo_phrase``) or value.
        catalogue: where names are looked up.

    Raises:
        SpecError: the SLO names a model that is not served; with file, line and key.
        PhraseError: the phrase cannot be read.
        ValueError: the same, of an SLO without a file.
    """
    if slo is None:
        return None
    if isinstance(slo, str) and is_phrase(slo):
        slo = parse_slo(slo)
    document = None if isinstance(slo, SloSpec) else catalogue.get("SLO", str(slo))
    slo_spec: SloSpec = slo if document is None else document.spec  # type: ignore[assignment]
    unserved = slo_spec.unserved({name for model in models for name in model.names})
    if not unserved:
        return slo_spec
    served = ", ".join(model.name for model in models)
    if document is not None:
        raise document.error(("spec", "models", unserved[0]), f"no pool serves it; served: {served}")
    raise ValueError(f"SLO: models.{unserved[0]}: no pool serves it; served: {served}")


def check_classes(slo: SloSpec, fleet: FleetPlan, trace: CompiledTrace) -> None:
    """Refuse terms about a class that no request has: of a model's own SLO none of its requests, of others none at all.

    Raises:
        ValueError: which term, and which classes there are.
        ModelNotServed: the trace asks for a model that no pool serves.
    """
    asked = models_of_requests(fleet, trace).model
    own = {name: [k for k, model in enumerate(fleet.models) if name in model.names] for name in slo.models}
    others = [k for k in range(len(fleet.models)) if not any(k in indices for indices in own.values())]
    for name, indices in (*own.items(), ("", others)):
        terms = slo.models[name] if name else slo
        problem = term_without_requests(terms, trace.arrays, np.isin(asked, indices))[1] if indices else ""
        if problem:
            raise ValueError(f"SLO: {f'models.{name}: ' if name else ''}{problem}")


def price_book(hardware: Hardware) -> PriceBook:
    """Prices of a study's or a deployment's hardware."""
    return PriceBook(
        {name: document.spec for name, document in hardware.accelerators.items()},
        {name: document.spec for name, document in hardware.hosts.items()},
        {name: document.spec for name, document in hardware.media.items()},
        hardware.device_specs,
    )


def pool_prices(hardware: Hardware, deployment: DeploymentSpec) -> list[PoolPrice]:
    """What each pool costs, by its workers; errors as of ``hardware.prices.deployment_cost``."""
    return price_book(hardware).pool_prices(deployment)


def stated_metrics(score: Score, *, with_slo: bool) -> dict[str, float]:
    """A score's metrics, without those that mean nothing unless there is an SLO."""
    return {name: value for name, value in score.metrics.items() if with_slo or name not in _SLO_FIGURES}


def outcome_counts(result: Result) -> dict[str, int]:
    """Number of requests by outcome: ``finished``, ``in_flight``, ``too_large``, ``unreached``."""
    counts = np.bincount(result.requests.outcome, minlength=len(Outcome))
    return {outcome.name.lower(): int(counts[outcome]) for outcome in Outcome}


@dataclass(frozen=True)
class ModelShare:
    """One model of a simulated deployment.

    Attributes:
        model: its name in the deployment. pools: names of the pools that serve it.
        result: of its requests and its pools, over the deployment's simulated time.
        cost: of its pools, on average where they autoscale.
        score: against the SLO of its requests.
    """

    model: str
    pools: tuple[str, ...]
    result: Result
    cost: CostBreakdown
    score: Score

    @property
    def arrived(self) -> int:
        """Number of its requests that had arrived when the simulation stopped."""
        return sum(check.arrived for check in self.score.slo if isinstance(check, RejectionCheck))

    def to_dict(self, *, with_slo: bool) -> dict[str, Any]:
        """As plain values; see docs/json.md."""
        slo = {"feasible": self.score.feasible, "terms": [check_to_dict(check) for check in self.score.slo]}
        return {
            "model": self.model,
            "pools": list(self.pools),
            "requests": outcome_counts(self.result),
            "metrics": stated_metrics(self.score, with_slo=with_slo),
            "slo": slo if with_slo else None,
            "usd_per_hour": self.cost.total,
            "accelerators": self.cost.accelerators,
        }


@dataclass(frozen=True)
class Replay:
    """A deployment with all inputs of its simulation and its score, except a trace.

    prices: of each pool.
    """

    deployment: DeploymentSpec
    fleet: FleetPlan
    prices: Sequence[PoolPrice]
    slo: SloSpec

    @property
    def cost(self) -> CostBreakdown:
        """Its cost with the initial replicas."""
        return mean_cost(self.prices, self.deployment, [((pool.replicas, 1.0),) for pool in self.deployment.pools])

    @property
    def plan(self) -> WorkerPlan:
        """A worker of the first pool."""
        return self.fleet.pools[0].plan

    def simulate(
        self,
        trace: CompiledTrace,
        *,
        load: float = 1.0,
        seed: int = 0,
        plan: WorkerPlan | None = None,
        log: bool = False,
    ) -> Result:
        """Simulate it; ``plan`` replaces the first pool's. Errors: see ``simulate.engine.simulate_fleet``."""
        from hisearch.simulate.engine import simulate_fleet

        fleet = self.fleet
        if plan is not None:
            first, *others = fleet.pools
            fleet = replace(fleet, pools=(replace(first, plan=plan), *others))
        return simulate_fleet(fleet, trace, seed=seed, load=load, log=log)

    def shares(self, trace: CompiledTrace, result: Result) -> list[ModelShare]:
        """A share for each model that the deployment serves, in the order of its pools."""
        fleet, deployment = self.fleet, self.deployment
        model_of_request, over_window = models_of_requests(fleet, trace).model, over_windows(fleet, trace)
        shares = []
        for number, model in enumerate(fleet.models):
            pool_indices = [p for p, pool in enumerate(deployment.pools) if deployment.model_ref(pool) == model.name]
            model_result = part_of_model(result, number)
            pools = [deployment.pools[p] for p in pool_indices]
            model_deployment = deployment.model_copy(update={"pools": pools})
            cost = mean_cost([self.prices[p] for p in pool_indices], model_deployment, model_result.present_workers)
            score = evaluate(
                model_result,
                self.slo.of(model.names),
                usd_per_hour=cost.total,
                accelerators=cost.accelerators,
                over_window=over_window[model_of_request == number],
                window_tokens=window_tokens(fleet)[number],
            )
            shares.append(ModelShare(model.name, tuple(pool.name for pool in pools), model_result, cost, score))
        return shares

    def score(
        self,
        trace: CompiledTrace,
        result: Result,
        shares: Sequence[ModelShare] | None = None,
        stretch: Stretch | None = None,
    ) -> Score:
        """The score of a simulation against the SLO; ``shares`` where already computed.

        With several models each is scored against its own SLO. All of them have to be feasible, and a request counts as
        good by its own model's terms. stretch: of a run of a single model that is to show a steady state, its parts.
        """
        if len(self.fleet.models) == 1:
            if stretch is not None:
                return score_measured(trace, result, stretch, self._overall)
            return self._overall(trace, result)
        overall = self._overall(trace, result)
        if shares is None:
            shares = self.shares(trace, result)
        arrived = sum(share.arrived for share in shares)
        good = sum(round(share.score.metrics["attainment"] * share.arrived) for share in shares)
        rates = {
            "goodput_rps": sum(share.score.metrics["goodput_rps"] for share in shares),
            "attainment": good / arrived if arrived else 0.0,
        }
        checks = tuple(of_model(check, share.model) for share in shares for check in share.score.slo)
        feasible = all(check.holds for check in checks)
        return replace(overall, metrics=overall.metrics | rates, slo=checks, feasible=feasible)

    def _overall(self, trace: CompiledTrace, result: Result, kept: np.ndarray | None = None) -> Score:
        """The score of all requests; kept: those of the trace's that ``result`` has."""
        cost = mean_cost(self.prices, self.deployment, result.present_workers)
        over_window = over_windows(self.fleet, trace)
        return evaluate(
            result,
            self.slo.of(self.fleet.models[0].names),
            usd_per_hour=cost.total,
            accelerators=cost.accelerators,
            over_window=over_window if kept is None else over_window[kept],
            window_tokens=window_tokens(self.fleet)[0] if len(self.fleet.models) == 1 else 0,
        )

    @property
    def moves_kv(self) -> bool:
        """Whether KV is transferred at all: between tiers, or from prefill to decode workers."""
        return any(pool.plan.tiers or pool.role == "decode" for pool in self.fleet.pools)

    def with_instant_transfers(self) -> Replay:
        """The deployment with instant media, links and KV transfers: queueing and computing remain."""
        pools = tuple(replace(pool, plan=_instant_plan(pool.plan)) for pool in self.fleet.pools)
        transfer = replace(self.fleet.transfer, base_s=0.0, bytes_per_s=math.inf, forward_s=0.0)
        return replace(self, fleet=replace(self.fleet, pools=pools, transfer=transfer))


def _instant_plan(plan: WorkerPlan) -> WorkerPlan:
    tiers = tuple(replace(tier, read=_AT_ONCE, write=_AT_ONCE, query_s=0.0) for tier in plan.tiers)
    movement = plan.movement
    if movement is not None:
        movement = replace(
            movement,
            host_read=_AT_ONCE,
            host_write=_AT_ONCE,
            shared=(),
            network_read=None if movement.network_read is None else _AT_ONCE,
            network_write=None if movement.network_write is None else _AT_ONCE,
        )
    return replace(plan, tiers=tiers, movement=movement)
