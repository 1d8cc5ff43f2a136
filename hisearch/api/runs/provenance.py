"""Where a run's figures come from: versions, seeds, inputs, machine, budget."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from hisearch.specs.wording import counted

if TYPE_CHECKING:
    from hisearch.report.data.inputs import PriceNote, ProfileNote
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.model.trial import Trial
    from hisearch.specs.documents.resolved import ResolvedStudy
    from hisearch.specs.machines.profile import LatencyProfileSpec

#: Packages whose versions can change a result.
_PACKAGES = ("hisearch", "numpy", "numba", "scipy", "optuna", "moocore", "joblib", "pandas")


def hisearch_version() -> str:
    """Version of the installed package."""
    return version("hisearch")


def provenance(
    resolved: ResolvedStudy, outcome: SearchOutcome, trace: dict[str, Any], run: dict[str, Any]
) -> dict[str, Any]:
    """What is needed to judge and repeat a run, as plain data.

    Args:
        resolved: the study.
        outcome: of the search.
        trace: the compiled trace: its name, digest, requests and skipped rows.
        run: facts of the execution: workers, wall time, replayed simulations, digest of the journal's inputs.
    """
    from hisearch.search.stages.ending import FINISHED

    trials = outcome.trials
    on_whole_trace = sum(trial.simulations for trial in trials if trial.slice_fraction == 1.0)
    budget = resolved.study.budget
    return {
        "study": resolved.name,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu_cores": os.cpu_count() or 1,
        "seeds": {"study": resolved.study.seed},
        "inputs": resolved.input_digests(),
        "overrides": list(resolved.overrides),
        "trace": trace,
        "budget": {
            "simulations": budget.simulations,
            "seconds": budget.wall_s,
            "simulations_used": outcome.ending.used,
            "whole_trace": on_whole_trace,
            "slices": sum(trial.slice_fraction < 1.0 for trial in trials),
            "failed": sum(bool(trial.error) for trial in trials),
            "stopped": outcome.stopped or FINISHED,
            "untried": list(outcome.ending.untried),
            "left_out": list(outcome.ending.left_out),
        },
        "stage_1": {"combinations": outcome.execution.combinations, "skipped": outcome.execution.skipped},
        "run": run,
    }


def format_simulations(facts: dict[str, Any]) -> str:
    """``394 simulations, 248 of them on the whole trace, none new: all are stored ones of an earlier run``.

    Args:
        facts: what ``provenance`` returned.
    """
    used, on_whole_trace, replayed = (
        facts["budget"]["simulations_used"],
        facts["budget"]["whole_trace"],
        facts["run"]["replayed"],
    )
    text = counted(used, "simulation")
    if on_whole_trace < used:
        text += f", {on_whole_trace:,} of them on the whole trace"
    if not replayed:
        return text
    if replayed == used:
        return f"{text}, none of them new: all are stored ones of an earlier run"
    return f"{text}, {replayed:,} of them stored ones of an earlier run"


def price_notes(resolved: ResolvedStudy) -> tuple[PriceNote, ...]:
    """Every price that the study's costs use."""
    from hisearch.report.data.inputs import PriceNote

    notes = []
    prices = {name: document.spec.price for name, document in resolved.accelerators.items()}
    prices |= {name: document.spec.price for name, document in resolved.hosts.items()}
    prices |= {name: device.price for name, device in resolved.hardware.device_specs.items()}
    for name, price in prices.items():
        if price.usd_per_hour > 0:
            notes.append(
                PriceNote(name, price.usd_per_hour, "USD/hour", price.evidence, price.source, price.as_of.isoformat())
            )
    tiers = resolved.space.spec.cache.tiers
    for name in dict.fromkeys(name for tier in tiers for name in tier.media if tier.sizes()[-1] > 0):
        facts = resolved.media[name].spec
        source, as_of = facts.provenance.source, facts.provenance.as_of.isoformat()
        notes.append(PriceNote(name, facts.usd_per_gib_hour, "USD/GiB/hour", "assumed", source, as_of))
    return tuple(notes)


def profile_note(resolved: ResolvedStudy, chosen: Trial | None) -> ProfileNote:
    """The latency profile with its evidence and error.

    An automatic profile is replaced by the selected one with the largest error, over the accelerators and engines of
    ``chosen``, or of the space where that is None. It is kept where one of them has no profile of its own.
    """
    from hisearch.latency.estimators.auto import AutoEstimator
    from hisearch.latency.sheets import of_catalogue
    from hisearch.report.data.inputs import ProfileNote

    name, profile = resolved.profile.name, resolved.profile.spec
    if profile.estimator == "auto":
        auto = AutoEstimator(name, profile)
        if chosen is not None:
            used = {(pool.accelerator, pool.engine.name) for pool in chosen.deployment.pools}
        else:
            execution = resolved.space.spec.execution
            used = {(accelerator, engine) for accelerator in execution.accelerators for engine in execution.engines}
        profile_names = {
            auto.chosen(resolved.accelerators[accelerator].spec, engine) for accelerator, engine in sorted(used)
        }
        specs = {
            profile_name: of_catalogue("LatencyProfile", profile_name)
            for profile_name in profile_names
            if profile_name is not None
        }
        if specs and None not in profile_names:
            name, profile = max(specs.items(), key=lambda item: (item[1].relative_error, item[0]))
            whose = "space" if chosen is None else "deployment"
            of_several = f"; errs most of the {whose}'s {len(specs)}" if len(specs) > 1 else ""
            name = f"{name} ({resolved.profile.name}{of_several})"
    served = "" if chosen is None else _served(resolved, chosen, profile)
    return ProfileNote(name, profile.evidence, profile.relative_error, profile.provenance.source, served)


def _served(resolved: ResolvedStudy, chosen: Trial, profile: LatencyProfileSpec) -> str:
    """The error of served runs like ``chosen``, as text: of the pool with the widest TTFT error."""
    from hisearch.latency.served_errors import plain_name, served_errors

    if profile.laws is None:
        return ""
    model, each_its_own = plain_name(resolved.model.spec.huggingface_id), resolved.profile.spec.estimator == "auto"
    pool_errors = []
    for pool in chosen.deployment.pools:
        is_measured = each_its_own or pool.accelerator == profile.laws.accelerator
        pool_errors.append(served_errors(pool.engine.name, pool.accelerator if is_measured else None, model))
    return str(max(filter(None, pool_errors), key=lambda errors: errors.ttft.width, default=""))
