"""A cheaper deployment than the one that runs: ``hisearch.advise(...)``, all that ``hisearch advise`` does.

A study of the observed load, whose space is what runs and its neighbours, and what differs in its answer. The search is
that of every study.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.observe import DEPLOYMENT, observed_load
from hisearch.api.studies.exporting import launch_of
from hisearch.api.studies.study import Study
from hisearch.base.shown import Shown
from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import ExportError, Launch
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import price_of
from hisearch.specs.documents.catalogue import Catalogue, is_path
from hisearch.specs.documents.overrides import apply_overrides
from hisearch.specs.documents.question_space import ROUTERS
from hisearch.specs.documents.resolve import load_deployment, resolve_study
from hisearch.specs.documents.resolved import study_text
from hisearch.specs.source import text_source
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.specs.studies.study import CAPACITY, StudySpec, WorkloadRef
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    from hisearch.api.deployments.deployment import SimulatedDeployment
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.records.interrupts import Interrupts
    from hisearch.search.records.progress import Progress
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.resolved import ResolvedDeployment
    from hisearch.specs.studies.slo import SloSpec

#: Values that are tried beside those that run.
CHUNKS, RUNNING, RANKS = (2048, 8192), (64, 256), (1, 2, 4, 8)
#: Flags that no study searches: pages, and what states the simulated KV memory.
_PAGES = ("--block-size", "--page-size")
_OF_CAPACITY = {"--num-gpu-blocks-override", "--max-model-len", "--max-total-tokens", "--max_seq_len", *_PAGES}
#: Simulations of the study.
SIMULATIONS, SECONDS = 96, 120


class ChangedFlag(NamedTuple):
    """A flag whose value changes; "" where it is absent, or has no value."""

    flag: str
    now: str
    then: str


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """What runs, simulated on the observed load, and what the study recommends instead.

    changes: flags of the engine; None where no command line says it. more: whether more load was asked for.
    """

    current: SimulatedDeployment
    result: StudyResult
    changes: tuple[ChangedFlag, ...] | None
    more: bool

    @property
    def recommended(self) -> DeploymentSpec | None:
        """The recommended deployment; None where nothing meets the SLO."""
        best = self.result.recommendation
        return None if best is None else best.trial.deployment

    @property
    def chance(self) -> float | None:
        """Probability that it meets the SLO."""
        return self.result.confidence.chance if self.result.confidence is not None else None

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        deployment, best = self.current.resolved.deployment, self.result.recommendation
        held = "holds the SLO" if self.current.feasible else "misses the SLO, in the simulation"
        facts = {"you run": f"{describe(deployment)}: ${self.current.cost.total:,.2f} per hour, {held}"}
        if best is None:
            facts["instead"] = "nothing that was tried meets the SLO"
            return facts | {"why": self.result.failure.text if self.result.failure is not None else ""}
        chance = "" if self.chance is None else f", holds the SLO with {format_percent(self.chance)}"
        price = price_of(best.trial)
        facts["instead"] = f"{describe(best.trial.deployment)}: ${price:,.2f} per hour{chance}"
        capacity = best.trial.metrics.get("capacity_load") if self.more else None
        if capacity is not None:
            facts["load"] = f"{capacity:.2f} times the observed one"
        saved = self.current.cost.total - price
        if abs(saved) >= 0.005:
            facts["price"] = f"${abs(saved):,.2f} per hour {'less' if saved > 0 else 'more'}"
        if self.changes is not None:
            facts["flags"] = "  ".join(_flag(change) for change in self.changes) or "as they are"
        return facts

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        best = self.result.recommendation
        return {
            "current": {
                "deployment": self.current.resolved.deployment.model_dump(mode="json"),
                "usd_per_hour": self.current.cost.total,
                "feasible": self.current.feasible,
                "metrics": self.current.metrics,
            },
            "recommended": None
            if best is None
            else {
                "trial": best.trial.number,
                "deployment": best.trial.deployment.model_dump(mode="json"),
                "usd_per_hour": price_of(best.trial),
                "probability": self.chance,
            },
            "changes": None if self.changes is None else [change._asdict() for change in self.changes],
            "summary": self.facts(),
            "run_dir": str(self.result.run_dir),
        }


def advise(
    observed: str | Path,
    slo: str,
    *,
    profile: str | Path | None = None,
    gpu: Sequence[str] = (),
    more: bool = False,
    overrides: Iterable[str] = (),
    workers: int | None = None,
    run_dir: str | Path | None = None,
    progress: Progress | None = None,
    interrupts: Interrupts | None = None,
) -> Advice:
    """Hold what runs against its neighbours, on the observed load.

    Args:
        observed: folder of ``hisearch observe``, with ``deployment.yaml`` of one pool and a trace or workload.
        slo: a catalogue name, a path, or a phrase: ``"ttft p95 < 1s, tpot p95 < 50ms"``.
        profile: latency profile; ``profile.yaml`` of the folder, else the deployment's own.
        gpu: accelerators to try beside the one that runs.
        more: look for the most load at today's price, instead of the lowest price at today's load.
        overrides: ``key.path=value`` settings on the study.
        workers: threads; all cores where absent.
        run_dir: the run folder; ``runs/advise-<UTC time>`` where absent.
        progress: notified of the search's progress.
        interrupts: handler of signals.

    Raises:
        SpecError: a document cannot be used, or the deployment has several pools.
        FileNotFoundError: the folder has no load.
        NothingFitsError: no deployment can be built.
    """
    folder, catalogue = Path(observed), Catalogue()
    own = folder / "profile.yaml"
    chosen = str(profile) if profile is not None else str(own.absolute()) if own.is_file() else None
    settings = () if chosen is None else (f"spec.profile={chosen}",)
    resolved = load_deployment(folder / DEPLOYMENT, settings, catalogue)
    if len(resolved.deployment.pools) > 1:
        raise resolved.document.error("spec.pools", "servers that are set alike are compared; observe one kind of them")
    load = observed_load(folder)
    slo_ref, slo_spec = _slo(slo, catalogue)
    current = simulate_deployment(resolved, load, slo=slo_spec, catalogue=catalogue)
    spec = {
        "model": resolved.deployment.model,
        "workload": {"trace": str(load.absolute())},
        "slo": slo_ref,
        "space": _space(resolved, gpu, chosen),
        "objectives": _objectives(slo_spec, more),
        "budget": {"simulations": SIMULATIONS, "seconds": SECONDS},
    }
    if more:
        spec["limits"] = {"usd_per_hour": {"at_most": round(current.cost.total + 0.005, 2)}}
    text = study_text("advise", "What runs, and its neighbours, on the observed load.", spec)
    source = apply_overrides(text_source(text, catalogue.root / "advise.yaml"), "Study", tuple(overrides))
    study = Study(resolve_study(source, tuple(overrides), catalogue))
    result = study.run(workers, run_dir, progress=progress, interrupts=interrupts)
    return Advice(current, result, _changes(current, result), more)


def _slo(ref: str, catalogue: Catalogue) -> tuple[Any, SloSpec]:
    """What a study writes for the SLO, and the SLO."""
    if is_phrase(ref):
        phrase = parse_slo(ref)
        return phrase.model_dump(mode="json", exclude_defaults=True), phrase
    document = catalogue.get("SLO", ref)
    return (str(document.path) if is_path(ref) else ref), document.spec


def _objectives(slo: SloSpec, more: bool) -> list[str]:
    first = (
        StudySpec(model="-", workload=WorkloadRef(trace="-"), slo="-", space="-").with_objectives_of(slo).objectives[0]
    )
    return [CAPACITY, "usd_per_hour"] if more else [first, "usd_per_hour"]


def _space(resolved: ResolvedDeployment, gpu: Sequence[str], profile: str | None) -> dict[str, Any]:
    """What runs, and its neighbours; formats, memory share and engine stay as they are."""
    pool = resolved.deployment.pool
    engine = pool.engine
    # A law of whole steps prices the logged split alone.
    ranks = {pool.tensor_parallel} if resolved.profile.spec.regressions else {*RANKS, pool.tensor_parallel}
    execution: dict[str, Any] = {
        "accelerators": list(dict.fromkeys([pool.accelerator, *gpu])),
        "engines": [engine.name],
        "tensor_parallel": sorted(ranks),
        "pipeline_parallel": [pool.pipeline_parallel],
        "attention_data_parallel": [pool.attention_data_parallel],
        "expert_parallel": [pool.expert_parallel],
        "decode_context_parallel": sorted({1, pool.decode_context_parallel}),
        "prefill_context_parallel": sorted({1, pool.prefill_context_parallel}),
        "kv_dtypes": [pool.kv_dtype],
        "chunk_tokens": sorted({*CHUNKS, engine.chunk_tokens}),
        "max_running_requests": sorted({*RUNNING, engine.max_running_requests}),
        "max_replicas": max(2 * pool.replicas, 8),
    }
    if pool.weight_dtype is not None:
        execution["weight_dtypes"] = [pool.weight_dtype]
    if (drafts := engine.speculation) is not None:
        fewer = range(1, drafts.draft_tokens + 1)
        execution["speculation"] = [None, *(drafts.model_dump() | {"draft_tokens": count} for count in fewer)]
    return {
        "execution": execution,
        "routing": {"policies": ROUTERS},
        "cache": {
            "memory_fraction": [engine.memory_fraction, engine.memory_fraction],
            "eviction": [engine.eviction],
            "tiers": [],
        },
        "profile": profile if profile is not None else resolved.deployment.profile,
    }


def _changes(current: SimulatedDeployment, result: StudyResult) -> tuple[ChangedFlag, ...] | None:
    """Flags of the engine that differ; None without a recommendation, or where a command line cannot say it."""
    best = result.recommendation
    if best is None:
        return None
    now, then = current.resolved.deployment.pool, best.trial.deployment.pool
    # Commands are of the release that runs.
    then = then.model_copy(update={"engine": then.engine.model_copy(update={"version": now.engine.version})})
    launches = (
        Launch(
            now,
            current.resolved.model.spec,
            current.resolved.accelerators[now.accelerator].spec,
            current.plan.kv_capacity_tokens,
        ),
        launch_of(result.resolved, then, result.simulation.kv_capacity_tokens(best.trial.deployment.pool)),
    )
    try:
        before, after = (_flags(launch) for launch in launches)
    except ExportError:
        return None
    return tuple(
        ChangedFlag(flag, before.get(flag, "off"), after.get(flag, "off"))
        for flag in dict.fromkeys((*before, *after))
        if before.get(flag, "off") != after.get(flag, "off")
    )


def _flags(launch: Launch) -> dict[str, str]:
    rows = engine_flags(launch)
    return {row[0]: row[1] if len(row) > 1 else "" for row in rows if row[0] not in _OF_CAPACITY}


def _flag(change: ChangedFlag) -> str:
    """A change as it is typed: the flag with its value, or that it is left out."""
    return f"(without {change.flag})" if change.then == "off" else f"{change.flag} {change.then}".strip()
