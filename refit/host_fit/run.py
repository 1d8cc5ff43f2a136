"""The whole fit: read the campaigns, fit, hold out, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.validate.silicon.pricing import Pricer
from hisearch.validate.silicon.rows import read_rows
from refit.host_fit.cases import Case, closed_loop_cases, open_loop_cases, served_cases
from refit.host_fit.fit import HostFit, evaluator, fit, vector_of, workers
from refit.host_fit.leave_out import KEYS, LeftOut, leave_out
from refit.host_fit.report import by_group, coverage, error_laws, write_constants


@dataclass(frozen=True)
class Judged:
    """A fit and its results.

    errors: see ``report.by_group``: "fitted", and by held-out group. laws: of ``served_errors.yaml``. coverage:
    share of runs, held out by model, inside the intervals of other models' runs.
    """

    fit: HostFit
    runs: int
    errors: dict[str, dict[str, Any]]
    laws: dict[str, Any]
    coverage: dict[str, dict[str, float]]


def fit_hosts(
    silicon: Sequence[Path],
    open_loop: Sequence[Path],
    served: Sequence[Path] = (),
    *,
    without: Sequence[str] = tuple(KEYS),
    processes: int = 1,
    note: Callable[[str], None] = lambda _: None,
) -> Judged:
    """Fit host work to all runs of these files and folders, and judge it on held-out groups.

    Args:
        silicon: CSV files of closed-loop runs.
        open_loop: folders of open-loop runs.
        served: folders of served workloads with their own operator tables, each a case.
        without: kinds of groups held out in turn: keys of ``leave_out.KEYS``.
        processes: that simulate in parallel.
        note: called with lines of progress.

    Raises:
        ValueError: no run can be simulated, or a file cannot be read.
    """
    pricer = Pricer()
    cases: list[Case] = []
    for file in silicon:
        cases += closed_loop_cases(read_rows(file)[1], pricer)
        note(f"{file}: {len(cases)} runs so far")
    cases += open_loop_cases(open_loop, Catalogue())
    cases += served_cases(served, Catalogue())
    with workers(cases, processes) as pool:
        fitted = fit(cases, note=note, pool=pool)
        errors = evaluator(pool)(cases, [vector_of(fitted.times_of(case)) for case in cases])
        left_out = [leave_out(name, cases, fitted, note=note, pool=pool) for name in without]
    errors_by_group = {"fitted": by_group(cases, errors)} | {out.name: by_group(cases, out.errors) for out in left_out}
    return Judged(fitted, len(cases), errors_by_group, error_laws(cases, left_out), _coverage(cases, left_out))


def _coverage(cases: Sequence[Case], left_out: Sequence[LeftOut]) -> dict[str, dict[str, float]]:
    by_model = next((out for out in left_out if out.name == "model"), None)
    return {} if by_model is None else coverage(cases, by_model)


def write_judged(judged: Judged, constants: Path, laws: Path | None, fitted_on: str) -> None:
    """Write the constants, and the error laws unless ``laws`` is None."""
    write_constants(constants, judged.fit, fitted_on)
    if laws is not None:
        about = "# Errors of served runs that had no part in the constants, by `python -m refit hosts`.\n"
        laws.write_text(about + yaml.safe_dump(judged.laws, sort_keys=False), encoding="utf-8")
