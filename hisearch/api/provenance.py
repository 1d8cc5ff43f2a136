"""Where a run's figures come from: versions, seeds, inputs, machine, budget; and how a stored run's inputs differ."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.run_folder import PROVENANCE
from hisearch.base.json_file import read_json
from hisearch.specs.source import read_source, text_source
from hisearch.specs.wording import counted, listed

if TYPE_CHECKING:
    from hisearch.latency.served_errors import ServedErrors
    from hisearch.report.data.inputs import PriceNote, ProfileNote
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.model.trial import Trial
    from hisearch.specs.documents.resolved import ResolvedStudy
    from hisearch.specs.machines.profile import LatencyProfileSpec
    from hisearch.traces.compiled import CompiledTrace

#: Packages whose versions can change a result.
_PACKAGES = ("hisearch", "numpy", "numba", "scipy", "optuna", "moocore", "joblib", "pandas")

#: Keys of a study that decide the outcome of its simulations; files that it names are under ``pins``.
_DECISIVE = ("model", "workload", "slo", "seed", "limits", "availability", "objectives", "pins")

#: Most further keys that are listed.
_OTHERS = 6

#: Hexadecimal digits of a digest that are shown.
_DIGITS = 12


def hisearch_version() -> str:
    """Version of the installed package."""
    return version("hisearch")


def provenance(
    resolved: ResolvedStudy, outcome: SearchOutcome, trace: CompiledTrace, run: dict[str, Any]
) -> dict[str, Any]:
    """What is needed to judge and repeat a run, as plain data.

    Args:
        resolved: the study.
        outcome: of the search.
        trace: the compiled workload.
        run: facts of the execution: workers, wall time, replayed simulations, digest of the journal's inputs.
    """
    from hisearch.search.model.simulation_counts import count_simulations
    from hisearch.search.stages.ending import FINISHED

    trials = outcome.trials
    counts, budget = count_simulations(trials), resolved.study.budget
    return {
        "study": resolved.name,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "cpu_cores": os.cpu_count() or 1,
        "seeds": {"study": resolved.study.seed},
        "inputs": resolved.input_digests(),
        "overrides": list(resolved.overrides),
        "trace": {
            "name": trace.name,
            "digest": trace.digest,
            "requests": len(trace),
            "skipped_rows": trace.skipped_rows,
            "notes": list(trace.notes),
            "warnings": list(trace.cautions),
        },
        "budget": {
            "simulations": budget.simulations,
            "seconds": budget.wall_s,
            "simulations_used": counts.total,
            "within_budget": outcome.ending.used,
            **counts._asdict(),
            "trials": len(trials),
            "failed": sum(bool(trial.error) for trial in trials),
            "stopped": outcome.stopped or FINISHED,
            "untried": list(outcome.ending.untried),
            "left_out": list(outcome.ending.left_out),
            "likely": list(outcome.ending.likely),
            "proven": outcome.ending.proven,
        },
        "stage_1": {"combinations": outcome.execution.combinations, "skipped": outcome.execution.skipped},
        "run": run,
    }


def format_simulations(facts: dict[str, Any]) -> str:
    """``394 simulations: 369 of the whole trace and 25 of slices of it; all are stored ones of an earlier run``.

    Args:
        facts: what ``provenance`` returned.
    """
    from hisearch.search.model.simulation_counts import SimulationCounts

    counts = SimulationCounts(*(facts["budget"].get(kind, 0) for kind in SimulationCounts._fields))
    text, replayed = counts.describe(), facts["run"]["replayed"]
    if not replayed:
        return text
    if replayed == facts["budget"].get("trials"):
        return f"{text}; none of them new: all are stored ones of an earlier run"
    return f"{text}; {replayed:,} of them stored ones of an earlier run"


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
        source, as_of = facts.price_source or "not stated", facts.provenance.as_of.isoformat()
        notes.append(PriceNote(name, facts.usd_per_gib_hour, "USD/GiB/hour", "assumed", source, as_of))
    return tuple(notes)


def profile_note(resolved: ResolvedStudy, chosen: Trial | None) -> ProfileNote:
    """The latency profile with its evidence and error.

    An automatic profile is replaced by the selected one with the largest error, over the accelerators and engines of
    ``chosen``, or of the space where that is None. It is kept where one of them has neither a profile of its own nor
    laws that are carried over to it.
    """
    from hisearch.latency.estimators.auto import AutoEstimator
    from hisearch.report.data.inputs import ProfileNote

    name, profile = resolved.profile.name, resolved.profile.spec
    if profile.estimator == "auto":
        auto = AutoEstimator(name, profile)
        if chosen is not None:
            used = {(pool.accelerator, pool.engine.name) for pool in chosen.deployment.pools}
        else:
            execution = resolved.space.spec.execution
            used = {(accelerator, engine) for accelerator in execution.accelerators for engine in execution.engines}
        selected = [auto.selected(resolved.accelerators[accelerator].spec, engine) for accelerator, engine in used]
        specs = dict(pair for pair in selected if pair is not None)
        if specs and None not in selected:
            name, profile = max(specs.items(), key=lambda item: (item[1].relative_error, item[0]))
            whose = "space" if chosen is None else "deployment"
            of_several = f"; errs most of the {whose}'s {len(specs)}" if len(specs) > 1 else ""
            name = f"{name} ({resolved.profile.name}{of_several})"
    served = None if chosen is None else _served(resolved, chosen, profile)
    texts = ("", "") if served is None else (str(served), served.spans)
    return ProfileNote(name, profile.evidence, profile.relative_error, profile.provenance.source, *texts)


def _served(resolved: ResolvedStudy, chosen: Trial, profile: LatencyProfileSpec) -> ServedErrors | None:
    """The errors of served runs like ``chosen``: of the pool with the widest TTFT error."""
    from hisearch.latency.served_errors import plain_name, served_errors

    if profile.laws is None or profile.evidence == "transferred":
        return None
    model, each_its_own = plain_name(resolved.model.spec.huggingface_id), resolved.profile.spec.estimator == "auto"
    pool_errors = []
    for pool in chosen.deployment.pools:
        is_measured = each_its_own or pool.accelerator == profile.laws.accelerator
        pool_errors.append(served_errors(pool.engine.name, pool.accelerator if is_measured else None, model))
    return max(filter(None, pool_errors), key=lambda errors: errors.ttft.width, default=None)


def what_differs(folder: Path, resolved: ResolvedStudy) -> str:
    """The first key in which the study of the run in ``folder`` differs from ``resolved``, both values, and other keys.

    Where no key differs, the program does: another version, or changed kernels.

    Raises:
        SpecError: the study in ``folder`` cannot be read.
    """
    from hisearch.report.data.comparison import changes_between

    stored = read_source(folder / "study.yaml")
    current = text_source(resolved.to_yaml(), resolved.document.path)
    changes = changes_between(_decisive(stored.data["spec"]), _decisive(current.data["spec"]))
    if not changes:
        return _other_program(folder)
    first = changes[0]
    path = folder / "study.yaml"
    if first.key.startswith("pins."):
        named = first.key.removeprefix("pins.")
        text = f"{named} has the SHA-256 {_shown(first.a)} in {path}, and {_shown(first.b)} now"
    else:
        text = f"spec.{first.key} is {first.a or 'not set'} in {path}, and {first.b or 'not set'} now"
    # A changed key changes the pin of the file that it names: such pins are not listed.
    others = [f"spec.{change.key}" for change in changes[1:] if not change.key.startswith("pins.")]
    if first.key.startswith("pins."):
        others = [change.key.removeprefix("pins.") for change in changes[1:]]
    hidden = len(others) - _OTHERS
    shown = listed(others[:_OTHERS] + ([f"{counted(hidden, 'key')} more"] if hidden > 0 else []))
    return f"{text}; {shown} {'differs' if len(others) == 1 else 'differ'} too" if others else text


def _decisive(spec: dict[str, Any]) -> dict[str, Any]:
    kept = {key: spec[key] for key in _DECISIVE if key in spec}
    pins = {name: pin for name, pin in spec.get("pins", {}).items() if not name.startswith("SearchSpace/")}
    return kept | {"pins": pins}


def _shown(digest: str) -> str:
    return f"{digest[:_DIGITS]}…" if digest else "none (it is not used)"


def _other_program(folder: Path) -> str:
    path, now = folder / PROVENANCE, hisearch_version()
    then = read_json(path)["versions"]["hisearch"] if path.is_file() else now
    if then != now:
        return f"the study is the same, but hisearch was {then}, and is {now} now"
    return "the study is the same, but hisearch's kernels were others, or what a file stands for was"
