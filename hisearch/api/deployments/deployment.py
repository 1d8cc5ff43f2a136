"""One deployment on one workload: ``hisearch.simulate_deployment(...)``, all that ``hisearch simulate`` does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from hisearch.api.deployments.replay import check_classes, pool_prices, slo_for
from hisearch.api.deployments.simulated import SimulatedRun
from hisearch.api.deployments.tiers import series_of, tier_rows
from hisearch.api.deployments.workload import generator_of, load_trace
from hisearch.base.dtypes import F8
from hisearch.hardware.prices import ffn_host_name, mean_cost
from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.sharding import InvalidParallelism
from hisearch.score.energy import energy_parts, energy_use, mean_w
from hisearch.score.steady_state import Stretch
from hisearch.score.terms import check_to_dict
from hisearch.search.evaluate.sustained import steady_run
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.draw import ffn_accelerator_name
from hisearch.simulate.plans.fleet import FleetPlan
from hisearch.simulate.plans.fleet_plan import plan_fleet
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.plans.tiers import TierRefused
from hisearch.simulate.results.gaps import itl_percentiles
from hisearch.simulate.results.series import worker_series
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.machines.parallelism import nodes_per_worker, workers_per_node
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.agents import is_closed
from hisearch.traces.changes.continuation import continuation_of
from hisearch.traces.compiled import CompiledTrace


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


@dataclass(frozen=True, repr=False)
class SimulatedDeployment(SimulatedRun):
    """``SimulatedRun`` with its tables."""

    def series(self, interval_s: float | None = None) -> pd.DataFrame:
        """Time series of each worker, from the log: a row for each step, or for each ``interval_s`` seconds.

        See ``simulate.results.series`` for the columns, their definitions and the errors.
        """
        return worker_series(self.result, interval_s)

    def tier_series(self, interval_s: float | None = None) -> pd.DataFrame:
        """``simulate.results.tier_series`` with the medium and the scope of each store's tier."""
        return series_of([pool.plan for pool in self.fleet.pools], self.result, interval_s)

    def itl_percentiles(self, percents: npt.ArrayLike) -> F8:
        """Exact percentiles of all gaps between output tokens, seconds, from the log; see ``simulate.results.gaps``."""
        return itl_percentiles(self.result, percents)

    def workers(self) -> list[dict[str, Any]]:
        """One row per worker; see docs/json.md for the keys."""
        requests, workers = self.result.requests, self.result.workers
        count, span_s = len(workers.steps), self.result.makespan_s
        in_order = sorted(self.result.pools, key=lambda pool: pool.first_worker)
        pool_of = [pool for pool in in_order for _ in range(pool.workers)]
        transfers = self._kv_transfers()
        routed = requests.prefill_worker >= 0
        owner = requests.prefill_worker[routed]
        hits = np.bincount(owner, weights=requests.hit_tokens[routed], minlength=count)
        per_s = 1.0 / span_s if span_s > 0 else 0.0
        present_s = self.result.present_s
        return [
            {
                "worker": worker,
                "pool": pool_of[worker].name,
                "requests": int(workers.requests[worker]),
                "steps": int(workers.steps[worker]),
                "utilisation": float(workers.busy_s[worker] / present_s[worker]) if present_s[worker] else 0.0,
                "busiest_group_utilisation": float(workers.busiest_s[worker] / present_s[worker])
                if present_s[worker]
                else 0.0,
                "prefill_tokens": int(workers.prefill_tokens[worker]),
                "decode_tokens": int(workers.decode_tokens[worker]),
                "hit_tokens": int(hits[worker]),
                "host_hit_tokens": int(workers.host_hit_tokens[worker]),
                "evicted_tokens": int(workers.evicted_tokens[worker]),
                "preemptions": int(workers.preemptions[worker]),
                "peak_kv_tokens": int(workers.peak_kv_tokens[worker]),
                "kv_capacity_tokens": pool_of[worker].kv_capacity_tokens,
                "mean_w": float((pool_of[worker].idle_w * present_s[worker] + workers.energy_j[worker]) * per_s),
                "begun_s": _or_none(workers.begun_s[worker]),
                "gone_s": _or_none(workers.gone_s[worker]),
                **transfers.get(worker, {}),
            }
            for worker in range(count)
        ]

    def _kv_transfers(self) -> dict[int, dict[str, Any]]:
        """KV transfers that each worker sent or received, with disaggregated prefill and decode."""
        span_s = self.result.makespan_s
        return {
            use.worker: {
                "handed_over": use.transfers,
                "handed_over_tokens": use.tokens,
                "network_utilisation": use.busy_s / span_s if span_s > 0 else 0.0,
            }
            for use in self.result.kv_transfers
        }

    def pools(self) -> list[dict[str, Any]]:
        """One row per pool; see docs/json.md for the keys."""
        workers, busy_s, span_s = self.workers(), self.result.workers.busy_s, self.result.makespan_s
        rows = []
        for pool, plan, mean in zip(self.result.pools, self.fleet.pools, self.result.mean_workers, strict=True):
            pool_workers = workers[pool.first_worker : pool.first_worker + pool.workers]
            used_s = float(busy_s[pool.first_worker : pool.first_worker + pool.workers].sum())
            rows.append(
                {
                    "pool": pool.name,
                    "model": pool.model,
                    "role": pool.role,
                    "workers": sum(row["begun_s"] is not None for row in pool_workers),
                    "mean_workers": mean,
                    "requests": sum(row["requests"] for row in pool_workers),
                    "utilisation": used_s / (mean * span_s) if mean * span_s > 0 else 0.0,
                    "busiest_group_utilisation": max(row["busiest_group_utilisation"] for row in pool_workers),
                    "prefill_tokens": sum(row["prefill_tokens"] for row in pool_workers),
                    "decode_tokens": sum(row["decode_tokens"] for row in pool_workers),
                    "hit_tokens": sum(row["hit_tokens"] for row in pool_workers),
                    "preemptions": sum(row["preemptions"] for row in pool_workers),
                    "kv_capacity_tokens": pool.kv_capacity_tokens,
                    "mean_w": sum(row["mean_w"] for row in pool_workers),
                    "memory": _memory(plan.plan),
                    "profile": plan.plan.costs.profile,
                    "evidence": plan.plan.costs.evidence,
                    "relative_error": plan.plan.costs.relative_error,
                    "network_utilisation": max(
                        (row.get("network_utilisation", 0.0) for row in pool_workers), default=0.0
                    ),
                }
            )
        return rows

    def energy(self) -> dict[str, Any]:
        """Joules over the makespan by component, and watts of all pools and of a node; see docs/power.md."""
        use, watts = energy_use(self.result), mean_w(self.result)
        nodes = self._nodes()
        return {
            **asdict(use),
            "total_j": use.total_j,
            "components": asdict(energy_parts(self.result)),
            "mean_w": watts,
            "nodes": nodes,
            "mean_w_per_node": watts / nodes,
        }

    def _nodes(self) -> int:
        """Hosts taken by the average number of workers; pools on hosts of one kind share them."""
        used: dict[str | None, float] = {}
        for pool, workers in zip(self.resolved.deployment.pools, self.result.mean_workers, strict=True):
            name = pool.host or self.resolved.accelerators[pool.accelerator].spec.host
            host = self.resolved.hosts[name].spec if name is not None else None
            per_worker = nodes_per_worker(pool.parallelism, host) / workers_per_node(pool.parallelism, host)
            used[name] = used.get(name, 0.0) + workers * per_worker
            split = pool.devices.attention_ffn if pool.devices is not None else None
            if split is not None:
                ffn = self.resolved.accelerators[split.ffn_accelerator or pool.accelerator].spec
                name = ffn_host_name(pool, ffn)
                slots = self.resolved.hosts[name].spec.accelerators if name is not None else 1
                used[name] = used.get(name, 0.0) + math.ceil(workers / split.attention - 1e-9) * split.ffn / slots
        # A rounding error does not take another host.
        return sum(math.ceil(count - 1e-9) for count in used.values())

    def to_dict(self) -> dict[str, Any]:
        """Everything but the individual requests, as plain values; see docs/json.md."""
        costs, profile = self.plan.costs, self.resolved.profile.spec
        slo = None
        if self.slo is not None:
            slo = {
                "feasible": self.feasible,
                "max_rejected_fraction": self.slo.max_rejected_fraction,  # of models without an SLO of their own
                "terms": [check_to_dict(check) for check in self.score.slo],
            }
        return {
            "deployment": {"name": self.resolved.name, "spec": self.resolved.deployment.model_dump(mode="json")},
            "trace": {
                "name": self.trace.name,
                "digest": self.trace.digest,
                "requests": len(self.trace),
                "skipped_rows": self.trace.skipped_rows,
            },
            "load": self.load,
            "seed": self.seed,
            "horizon_s": self.horizon_s,
            "steadiness": self.steadiness or None,
            "horizon_reached": self.result.horizon_reached,
            "requests": self.outcomes(),
            "metrics": self.metrics,
            "slo": slo,
            "cost": {**asdict(self.cost), "usd_per_hour": self.cost.total},
            "memory": _memory(self.plan),
            "models": [share.to_dict(with_slo=self.slo is not None) for share in self.models],
            "pools": self.pools(),
            "energy": self.energy(),
            "workers": self.workers(),
            "tiers": tier_rows(self),
            "objects": [asdict(use) for use in self.result.objects],
            "adapters": [asdict(use) for use in self.result.adapters],
            "grammars": [asdict(use) for use in self.result.grammars],
            "hints": None if self.result.hints is None else asdict(self.result.hints),
            "profile": {
                "name": costs.profile,
                "evidence": costs.evidence,
                "relative_error": costs.relative_error,
                "served_errors": None if costs.served is None else costs.served.to_dict(),
                "source": profile.provenance.source,
            },
            "warnings": list(self.warnings),
        }


def _memory(plan: WorkerPlan) -> dict[str, Any]:
    """Device memory of a worker by use, in bytes, and its host tier's capacity in tokens."""
    tokens = {"kv_capacity_tokens": plan.kv_capacity_tokens, "host_capacity_tokens": plan.host_capacity_tokens}
    return asdict(plan.memory) | tokens


def simulate_deployment(
    deployment: str | Path | ResolvedDeployment,
    trace: str | Path | CompiledTrace,
    *,
    slo: str | Path | SloSpec | None = None,
    overrides: Iterable[str] = (),
    load: float = 1.0,
    seed: int = 0,
    horizon_s: float = math.inf,
    log: bool = False,
    catalogue: Catalogue | None = None,
    generator: GeneratorSpec | None = None,
    carry_on: bool = True,
) -> SimulatedDeployment:
    """Replay a workload on one deployment.

    Above a load of 1 the workload is carried on for as long as a steady state takes to show. A warm-up is then left out
    of the latencies, the SLO and the rates of a deployment of one model (docs/metrics.md).

    Args:
        deployment: a catalogue name, a path, or a resolved deployment.
        trace: a catalogue name, the path of a workload's YAML or of a trace file, or a compiled trace.
        slo: the SLO to score against, by name, path or value.
        overrides: ``key.path=value`` settings on the deployment, as of ``--set``.
        load: factor on the arrival rate of first turns, which arrive over some time.
        seed: of the workload and of the router's random stream.
        horizon_s: simulated seconds after which it stops; unfinished requests count as infinitely late.
        log: keep every step (``result.log``), for ``series``, exact ITL and timelines.
        catalogue: where names are looked up; the working directory and the shipped documents where None.
        generator: what a compiled ``trace`` was drawn from, to be carried on by; it is repeated where None.
        carry_on: whether it is carried on at all; a study's trials at its own load are not.

    Raises:
        SpecError, TraceError: with file, line and key; also where the model cannot be split so.
        DoesNotFit: the model leaves no memory for KV; says how many bytes are short.
        ValueError: ``load`` or ``horizon_s`` is not positive, ``load`` is given for a closed loop, or ``overrides`` are
            given for a resolved deployment.
    """
    if not horizon_s > 0:
        raise ValueError(f"horizon_s must be a positive number of seconds, not {horizon_s:g}")
    catalogue = catalogue or Catalogue()
    settings = tuple(overrides)
    if isinstance(deployment, ResolvedDeployment):
        if settings:
            raise ValueError("overrides apply while a deployment is loaded; this one is resolved already")
        resolved = deployment
    else:
        resolved = load_deployment(deployment, settings, catalogue)
    fleet = plan_deployment(resolved)
    slo_spec = slo_for(fleet.models, slo, catalogue)
    compiled = trace if isinstance(trace, CompiledTrace) else load_trace(trace, seed=seed, catalogue=catalogue)
    if not isinstance(trace, CompiledTrace):
        generator = generator_of(trace, catalogue)
    if load != 1.0 and compiled.agents is not None and is_closed(compiled.agents):
        raise ValueError(
            f"load {load:g}: a population of agents calls in a closed loop, in which nothing arrives faster; set its "
            "number (spec.agents.agents)"
        )
    if slo_spec is not None:
        check_classes(slo_spec, fleet, compiled)
    terms = slo_spec.terms if slo_spec is not None else ()
    compiled, stretch = _at_load(compiled, load, generator, seed, terms if carry_on else None)
    result = simulate_fleet(fleet, compiled, seed=seed, horizon_s=horizon_s, load=load, log=log)
    prices = pool_prices(resolved.hardware, resolved.deployment)
    cost = mean_cost(prices, resolved.deployment, result.present_workers)
    return SimulatedDeployment(
        resolved, compiled, slo_spec, fleet, result, cost, load, seed, horizon_s,
        stretch if math.isinf(horizon_s) else None,
    )  # fmt: skip


def _at_load(
    trace: CompiledTrace, load: float, generator: GeneratorSpec | None, seed: int, terms: Sequence[SloTerm] | None
) -> tuple[CompiledTrace, Stretch | None]:
    """The trace, carried on above its own load to show these terms, unless None; and the parts of its run then.

    Raises:
        ValueError: another load is given, and the trace has none that could be changed.
    """
    if load == 1.0:
        return trace, None
    continuation = continuation_of(trace, generator, seed)
    if continuation is None:
        raise ValueError(
            f"load {load:g}: all first turns of {trace.name} arrive at once, or its agents wait for each other: a "
            "closed loop has no arrival rate. Change the number of its users or agents instead"
        )
    return steady_run(continuation, load, terms) if load > 1.0 and terms is not None else (trace, None)


def plan_deployment(resolved: ResolvedDeployment) -> FleetPlan:
    """The deployment's pools, compiled; errors as of ``simulate_deployment``."""
    spec = resolved.deployment
    fabric, prices = spec.transfer.fabric, pool_prices(resolved.hardware, spec)
    return plan_fleet(
        spec,
        [plan_pool(resolved, index) for index in range(len(spec.pools))],
        models={ref: model.spec for ref, model in resolved.served.items()},
        usd_per_hour=[price.initial.total / price.pool.replicas for price in prices],
        fabric=resolved.hardware.fabrics[fabric].spec if fabric is not None else None,
    )


def plan_pool(resolved: ResolvedDeployment, index: int) -> WorkerPlan:
    """One worker of a pool, compiled."""
    with _refusals(resolved, index):
        return plan_worker(**_worker(resolved, index), profile_name=resolved.profile.name)


def _worker(resolved: ResolvedDeployment, index: int) -> dict[str, Any]:
    """The arguments of ``plan_worker``."""
    pool = resolved.deployment.pools[index]
    accelerator = resolved.accelerators[pool.accelerator].spec
    host_name = pool.host or accelerator.host
    ffn_name = ffn_accelerator_name(pool)
    ffn = resolved.accelerators[ffn_name].spec if ffn_name is not None else None
    ffn_host = ffn_host_name(pool, ffn or accelerator)
    return {
        "pool": pool,
        "model": resolved.model_of(pool).spec,
        "accelerator": accelerator,
        "host": resolved.hosts[host_name].spec if host_name is not None else None,
        "media": {name: document.spec for name, document in resolved.media.items()},
        "profile": resolved.profile.spec,
        "devices": resolved.hardware.device_specs,
        "ffn_accelerator": ffn,
        "ffn_host": resolved.hosts[ffn_host].spec if ffn_host is not None else None,
    }


@contextmanager
def _refusals(resolved: ResolvedDeployment, index: int) -> Iterator[None]:
    """Locate a refused tier, device or split in the deployment's file."""
    try:
        yield
    except TierRefused as refused:
        problem = refused.problem
        raise resolved.document.error(f"spec.pools.{index}.{problem.key}", problem.message) from None
    except DevicesRefused as error:
        raise resolved.document.error(f"spec.pools.{index}.{error.key}", error.message) from None
    except InvalidParallelism as split:
        raise resolved.document.error(f"spec.pools.{index}.{split.key}", str(split)) from None
