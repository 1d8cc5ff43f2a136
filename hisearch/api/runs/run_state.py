"""The state of a run, live or finished, from its folder alone; nothing is simulated and no trace is read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisearch.api.runs.run_folder import CLOSEUP, JOURNAL, PROVENANCE, has_ended
from hisearch.report.pages.dashboard_page import may_show
from hisearch.score.stated import stated
from hisearch.specs.source import read_source


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    label: its folder's name. study: the study's name. ended: its documents are written. simulations: finished so far;
    budget: allowed. trial, description, feasible, metrics: of the recommendation (or the nearest miss); of a live run,
    of the cheapest feasible trial so far. They are "", None or empty where unknown. stopped: what ended it early, as
    in provenance. has_report: a report exists, or can be drawn from a live run. asked: latency metrics that its SLO
    bounds.
    """

    label: str
    study: str
    ended: bool
    simulations: int
    budget: int
    stopped: str = ""
    trial: int | None = None
    description: str = ""
    feasible: bool | None = None
    has_report: bool = False
    asked: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)


def run_state(folder: Path) -> RunState:
    """The state of the run in a folder.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is invalid.
    """
    study = read_source(folder / "study.yaml").data
    budget = int(study["spec"]["budget"]["simulations"])
    name = str(study["metadata"]["name"])
    if not has_ended(folder):
        begun = (folder / JOURNAL).is_file()
        return RunState(folder.name, name, False, _journalled(folder / JOURNAL), budget, has_report=begun)
    facts = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))["budget"]
    shown = _shown(folder)
    return RunState(
        folder.name, name, True, int(facts["simulations_used"]), budget, str(facts["stopped"]),
        has_report=(folder / "report.html").is_file(), **shown,
    )  # fmt: skip


def _journalled(path: Path) -> int:
    """Number of complete lines of a journal after its header."""
    if not path.is_file():
        return 0
    return max(path.read_bytes().count(b"\n") - 1, 0)


def _shown(folder: Path) -> dict[str, Any]:
    """The trial that the report shows, from ``closeup.json`` and ``trials.parquet``; empty without the former."""
    import pandas as pd

    if not (folder / CLOSEUP).is_file():
        return {}
    number = int(json.loads((folder / CLOSEUP).read_text(encoding="utf-8"))["trial"])
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
