"""The files that ``hisearch simulate`` writes on demand: a row per request, the workers over time, a timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hisearch.cli import options

if TYPE_CHECKING:
    import pandas as pd

    from hisearch.api.deployments.deployment import SimulatedDeployment

_TABLES = (".parquet", ".csv", ".csv.gz")
_TIMELINES = (".json", ".json.gz")


@dataclass(frozen=True)
class Files:
    """The files to write; each is None unless requested.

    requests, series, tier_series: tables. series_interval_s: seconds between rows, None for a row per step. timeline: a
    Chrome trace of what happens between from_s and to_s.

    Raises:
        typer.BadParameter: a file name without a known suffix, or an option without the one it belongs to.
    """

    requests: Path | None
    series: Path | None
    tier_series: Path | None
    series_interval_s: float | None
    timeline: Path | None
    from_s: float | None
    to_s: float | None

    def __post_init__(self) -> None:
        _check_name(self.requests, _TABLES, "--requests")
        _check_name(self.series, _TABLES, "--series")
        _check_name(self.tier_series, _TABLES, "--tier-series")
        _check_name(self.timeline, _TIMELINES, "--timeline")
        series = self.series or self.tier_series
        _check_owner(self.series_interval_s, "--series-interval-s", series, "--series or --tier-series")
        _check_owner(self.from_s, "--timeline-from-s", self.timeline, "--timeline")
        _check_owner(self.to_s, "--timeline-to-s", self.timeline, "--timeline")
        from_s, to_s = self._edges()
        if not from_s < to_s:
            raise typer.BadParameter(f"the window from {from_s:g} s to {to_s:g} s is empty", param_hint="--timeline-*")
        if self.series_interval_s is not None and not 0 < self.series_interval_s < math.inf:
            raise typer.BadParameter("expected a positive number of seconds", param_hint="--series-interval-s")

    @property
    def need_log(self) -> bool:
        """Whether the simulation has to keep a log of its steps."""
        return any(file is not None for file in (self.series, self.tier_series, self.timeline))

    def write(self, simulated: SimulatedDeployment) -> None:
        """Write the requested files, each to a temporary file that is then renamed."""
        if self.requests is not None:
            _write_table(simulated.requests_frame(), self.requests)
        if self.series is not None:
            _write_table(simulated.series(self.series_interval_s), self.series)
        if self.tier_series is not None:
            _write_table(simulated.tier_series(self.series_interval_s), self.tier_series)
        if self.timeline is not None:
            self._write_timeline(simulated, self.timeline)

    def _write_timeline(self, simulated: SimulatedDeployment, path: Path) -> None:
        from hisearch.api.run_folder import replace_with
        from hisearch.report.figures.timeline import TimelineTooLarge, Window, write_timeline

        def write(temporary: Path) -> None:
            write_timeline(
                simulated.result,
                temporary,
                request_ids=simulated.trace.request_ids,
                window=Window(*self._edges()),
                packed=path.name.endswith(".gz"),
            )

        try:
            replace_with(path, write)
        except TimelineTooLarge as error:
            raise TimelineTooLarge(f"{path}: {error}: --timeline-from-s, --timeline-to-s") from None

    def _edges(self) -> tuple[float, float]:
        return 0.0 if self.from_s is None else self.from_s, math.inf if self.to_s is None else self.to_s


def _check_name(path: Path | None, endings: Sequence[str], option: str) -> None:
    if path is not None and not path.name.endswith(tuple(endings)):
        raise typer.BadParameter(f"{path}: expected a name ending in {', '.join(endings)}", param_hint=option)
    options.check_places(path)


def _check_owner(value: float | None, option: str, owner: Path | None, owner_option: str) -> None:
    if value is not None and owner is None:
        raise typer.BadParameter(f"means nothing without {owner_option}", param_hint=option)


def _write_table(frame: pd.DataFrame, path: Path) -> None:
    from hisearch.api.run_folder import replace_with

    if path.name.endswith(".parquet"):
        replace_with(path, lambda temporary: frame.to_parquet(temporary, index=False))
    else:
        # The temporary file's name does not tell pandas whether to pack.
        packed = path.name.endswith(".gz")
        inert = frame.map(_inert)
        replace_with(
            path, lambda temporary: inert.to_csv(temporary, index=False, compression="gzip" if packed else None)
        )


def _inert(value: object) -> object:
    """A cell that no spreadsheet takes for a formula: names come from trace files of others."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
