"""The state of runs for the dashboard, read from their folders alone: nothing is simulated or changed."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hisearch.api.run_folder import CLOSEUP, JOURNAL, PROVENANCE, REPORT, has_ended
from hisearch.api.run_lock import is_running
from hisearch.base.json_file import read_json
from hisearch.report.figures.curves import Curve, curve
from hisearch.report.pages.dashboard_page import RunState, Status, may_show
from hisearch.report.words.settings import format_setting, settings, used_settings
from hisearch.score.quantities import usd
from hisearch.score.stated import stated
from hisearch.score.terms import name_of
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.records.journal import read_so_far
from hisearch.search.select.pareto import hypervolume_progress
from hisearch.search.select.recommend import cheapest
from hisearch.specs.source import read_source

#: Settings by which All trials of a report can be narrowed from the dashboard.
_FILTERS = ("accelerator", "engine")
#: Hexadecimal digits that tell pinned documents apart.
_DIGEST = 12


class RunReader:
    """Reads the states of runs; a journal is read again only once it has grown."""

    def __init__(self) -> None:
        """Nothing is read yet."""
        self._lock = threading.Lock()
        self._trials: dict[Path, tuple[tuple[int, int], tuple[Trial, ...], int]] = {}

    def state(self, folder: Path) -> RunState:
        """The state of the run in a folder.

        Raises:
            OSError: a file cannot be read.
            ValueError: a file is invalid.
        """
        study = read_source(folder / "study.yaml").data
        spec = study["spec"]
        trials, simulations = self._journal(folder / JOURNAL)
        base = RunState(
            folder.name,
            str(study["metadata"]["name"]),
            status_of(folder),
            simulations,
            int(spec["budget"]["simulations"]),
            has_report=(folder / JOURNAL).is_file(),
            curves=_curves(trials, spec.get("objectives") or ()),
            filters=_filters(trials),
            question=dict(_flat(spec)),
        )
        if not base.ended:
            return _so_far(base, trials, spec.get("objectives") or ())
        facts = read_json(folder / PROVENANCE)["budget"]
        ended = replace(
            base,
            simulations=int(facts["simulations_used"]),
            stopped=str(facts["stopped"]),
            has_report=(folder / REPORT).is_file(),
            **_shown(folder),
        )
        chosen = next((trial for trial in trials if trial.number == ended.trial), None)
        return ended if chosen is None else replace(ended, settings=_settings(chosen))

    def _journal(self, path: Path) -> tuple[tuple[Trial, ...], int]:
        """Trials and the number of simulations."""
        if not path.is_file():
            return (), 0
        facts = path.stat()
        stamp = (facts.st_mtime_ns, facts.st_size)
        with self._lock:
            known = self._trials.get(path)
            if known is None or known[0] != stamp:
                journal = read_so_far(path)
                known = self._trials[path] = stamp, journal.trials, journal.simulations
        return known[1], known[2]


def status_of(folder: Path) -> Status:
    """Whether a run has ended, goes on, was interrupted, or (by an earlier version, without a lock) cannot be told."""
    running = is_running(folder)
    if running:
        return "running"
    if has_ended(folder):
        return "ended"
    return "unknown" if running is None else "interrupted"


def _so_far(state: RunState, trials: Sequence[Trial], objectives: Sequence[str]) -> RunState:
    """The state with the cheapest deployment so far that meets the SLO, as the report so far has it."""
    best = cheapest([trial for trial in trials if trial.meets_slo], objectives)
    if best is None:
        return state
    return replace(
        state,
        trial=best.number,
        description=describe(best.deployment),
        feasible=True,
        asked=stated(name_of(check) for check in best.slo),
        metrics={name: value for name, value in best.metrics.items() if may_show(name)},
        settings=_settings(best),
    )


def _shown(folder: Path) -> dict[str, Any]:
    """The trial that the report shows, from ``closeup.json`` and ``trials.parquet``; empty without the former."""
    import pandas as pd

    if not (folder / CLOSEUP).is_file():
        return {}
    number = int(read_json(folder / CLOSEUP)["trial"])
    frame = pd.read_parquet(folder / "trials.parquet")
    row = frame[frame["number"] == number].iloc[0]
    metrics = {name: float(row[name]) for name in frame.columns if may_show(name) and pd.notna(row[name])}
    return {
        "trial": number,
        "description": str(row["description"]),
        "feasible": bool(row["feasible"]),
        "asked": stated(name.removeprefix("margin_") for name in frame.columns if name.startswith("margin_")),
        "metrics": metrics,
    }


def _curves(trials: Sequence[Trial], objectives: Sequence[str]) -> tuple[Curve, ...]:
    """The best price so far and the hypervolume so far, over simulations."""
    if not trials:
        return ()
    until = max(trial.number for trial in trials)
    best: list[tuple[int, float]] = []
    for trial in trials:
        if trial.meets_slo and (not best or price_of(trial) < best[-1][1]):
            best.append((trial.number, price_of(trial)))
    volumes = hypervolume_progress(trials, objectives) if objectives else {}
    final = volumes[max(volumes)] if volumes else 0.0
    shares = [(number, 100 * volumes[number] / final) for number in sorted(volumes)] if final > 0 else []
    drawn = (
        curve("Cheapest as simulated", best, until, lambda value: f"{usd(value)}/h"),
        curve("Front so far (hypervolume)", shares, until, lambda value: f"{value:.0f} %"),
    )
    return tuple(entry for entry in drawn if entry is not None)


def _filters(trials: Sequence[Trial]) -> tuple[tuple[str, str, int], ...]:
    """Settings by which All trials can be narrowed: name, value, number of trials; of settings that differ."""
    chosen = [settings(trial.deployment) for trial in trials if trial.comparable]
    counts = {name: Counter(format_setting(values[name]) for values in chosen) for name in _FILTERS}
    return tuple(
        (name, value, count)
        for name, values in counts.items()
        if len(values) > 1
        for value, count in values.most_common(4)
    )


def _settings(trial: Trial) -> dict[str, str]:
    return {name: format_setting(value) for name, value in used_settings(trial.deployment).items()}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Keys of a document with their paths, and values as text."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _as_text(value) if prefix != "pins." else str(value)[:_DIGEST]


def _as_text(value: Any) -> str:
    """A value of a document; names of a list with commas."""
    if isinstance(value, list):
        return ", ".join(value) if all(isinstance(item, str) for item in value) else json.dumps(value)
    return str(value)
