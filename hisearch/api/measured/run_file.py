"""Files of measured runs: ``runs.yaml`` says what ran, CSV files have what was measured, a row for each second.

A column of seconds is called ``time_s``, on the trace's clock for throughput, or ``clock`` (HH:MM:SS, of one day).
Clocks of two machines differ by a constant, by which series are aligned (``score``). ``set_here`` names figures by
which a constant in the tree was set; they are computed, and left out of every score.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationError

from hisearch.base.dtypes import F8
from hisearch.specs.base import Count, NonNegativeInt, Positive, Strict
from hisearch.specs.errors import SpecError
from hisearch.specs.yaml_nodes import load_yaml
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.reading.source import Requests
from hisearch.validate.recorded_trace import trace_of

#: Name of the file that lists the runs.
RUNS = "runs.yaml"

#: Figures of a run.
FigureName = Literal[
    "throughput", "gpu_power", "gpu_work_w", "server_power", "prefix_hits", "external_hits", "kv_capacity_tokens",
    "ttft_ms", "tpot_ms",
]  # fmt: skip


class SeriesFile(Strict):
    """A column of a CSV file, a row for each second."""

    file: str = Field(description="Below the folder.")
    column: str = Field(description="Which column; columns of percent are so called.")
    other_accelerators: NonNegativeInt = Field(
        0, description="server_power: accelerators in the server that have no work; each draws standby_w, else idle_w."
    )


class MeasuredRun(Strict):
    """One run: what served it, its trace, and what was measured."""

    id: str = Field(min_length=1, description="Of the run, for tables.")
    deployment: str = Field(description="Path of the Deployment, relative to the list of runs.")
    settings: list[str] = Field(default_factory=list, description="key.path=value settings on it, as of --set.")
    trace: str = Field(
        description="JSON lines below the folder: arrival_s, input_tokens, output_tokens, block_ids (chained full "
        "blocks of the prompt)."
    )
    block_tokens: Count = Field(16, description="Tokens of a block.")
    throughput: SeriesFile | None = Field(None, description="Generated tokens per second.")
    gpu_power: SeriesFile | None = Field(None, description="Watts of the accelerators at work.")
    server_power: SeriesFile | None = Field(None, description="Watts of the whole server.")
    prefix_hits: SeriesFile | None = Field(None, description="Running prefix hit rate of prompt tokens, percent.")
    external_hits: SeriesFile | None = Field(None, description="Running hit rate of a shared cache, percent.")
    kv_capacity_tokens: Count | None = Field(None, description="Of one worker, as logged.")
    ttft_ms: Positive | None = Field(None, description="Mean.")
    tpot_ms: Positive | None = Field(None, description="Mean.")
    by_second: bool = Field(True, description="false: seconds are not comparable, only sum and end are (say why).")
    set_here: dict[FigureName, str] = Field(
        default_factory=dict, description="Figures that set a constant, and which: computed, never scored."
    )
    assumptions: list[str] = Field(default_factory=list, description="Stated before comparing.")


class MeasuredRuns(Strict):
    """The list of runs of a folder."""

    source: str = Field(min_length=1, description="Who measured, and with what.")
    runs: list[MeasuredRun] = Field(min_length=1, description="In order.")


def read_runs(folder: Path, runs: Path | None = None) -> tuple[MeasuredRuns, Path]:
    """The list of runs, and the folder that its deployments are relative to.

    Args:
        folder: of the measurements.
        runs: the list; ``runs.yaml`` of the folder where None.

    Raises:
        SpecError: it cannot be read, or an entry is not valid; with file and key.
    """
    path = runs if runs is not None else folder / RUNS
    try:
        data, _ = load_yaml(path.read_text(encoding="utf-8"), path)
    except OSError as error:
        raise SpecError.at(f"cannot be read: {error.strerror}", path=path) from None
    try:
        return MeasuredRuns.model_validate(data), path.parent
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError.at(str(first["msg"]), path=path, key=".".join(map(str, first["loc"]))) from None


def read_trace(path: Path, block_tokens: int) -> CompiledTrace:
    """The requests of a run, compiled.

    Raises:
        SpecError: the file cannot be read, or a line lacks a key.
    """
    requests = Requests()
    for number, row in enumerate(_lines(path), start=1):
        try:
            ids = list(row["block_ids"])
            requests.add(
                float(row["arrival_s"]), int(row["input_tokens"]), int(row["output_tokens"]),
                request_id=str(row.get("id", number)), ids=ids, known_tokens=block_tokens * len(ids),
            )  # fmt: skip
        except KeyError as error:
            raise SpecError.at("is missing", path=path, line=number, key=str(error.args[0])) from None
    return trace_of(requests, block_tokens, path.name)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.strip())
    except (OSError, json.JSONDecodeError) as error:
        raise SpecError.at(f"cannot be read: {error}", path=path) from None


class Series(NamedTuple):
    """Seconds and values, each of shape (rows,). by_clock: seconds count from the first row, else as written."""

    at_s: F8
    values: F8
    by_clock: bool


def read_series(folder: Path, series: SeriesFile) -> Series:
    """A column; rows without a value are left out.

    Raises:
        SpecError: the file or the column is not there, or a value is no number.
    """
    path = folder / series.file
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise SpecError.at(f"cannot be read: {error.strerror}", path=path) from None
    columns = list(rows[0]) if rows else []
    if series.column not in columns:
        raise SpecError.at(f"no column {series.column}; known: {', '.join(columns)}", path=path)
    at: list[float] = []
    values: list[float] = []
    for number, row in enumerate(rows, start=2):
        if row[series.column] in ("", None):
            continue
        try:
            at.append(_seconds(row))
            values.append(float(row[series.column]))
        except (KeyError, ValueError):
            raise SpecError.at("expected time_s or clock, and a number", path=path, line=number) from None
    by_clock = "time_s" not in columns
    return Series(np.array(at) - (at[0] if at and by_clock else 0.0), np.array(values), by_clock)


def _seconds(row: dict[str, str]) -> float:
    if "time_s" in row:
        return float(row["time_s"])
    hours, minutes, seconds = (float(part) for part in row["clock"].split(":"))
    return 3600.0 * hours + 60.0 * minutes + seconds
