"""Folders of open-loop runs: ``runs.json``, ``measured.csv`` and ``models/``; docs/formats.md states the form.

An invalid run is a failure of its own and does not affect the others; a file that cannot be read fails its
folder.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hisearch.specs.base import Count, EngineName, Fraction, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.errors import dotted
from hisearch.specs.validation_messages import describe
from hisearch.specs.wording import described, unknown

RUNS, FIGURES = "runs.json", "measured.csv"
METRICS = ("e2e_mean", "e2e_p90", "e2e_p99", "itl_mean", "ttft_mean", "ttft_p90", "ttft_p99")
#: Number of the whole run among its stages.
WHOLE = -1
_FORM = "expected columns set, id (or run), stage, metric, ms"
#: Measured milliseconds by (set, run, stage, metric).
Measured = dict[tuple[str, str, int, str], float]
_Name = Annotated[str, Field(min_length=1)]


class OpenLoopFileError(ValueError):
    """A folder of open-loop runs that cannot be read; names file, run, key and what was expected."""


class OpenLoopRun(Strict):
    """One measured run of ``runs.json``."""

    id: _Name
    set: str = ""
    huggingface_id: str = ""
    model: _Name = Field(description="Name of the catalogue, or of a file in models/.")
    accelerator: _Name
    tensor_parallel: Count = 1
    expert_parallel: Count = 1
    engine: EngineName = "vllm"
    engine_version: str = "0.15.1"
    max_num_batched_tokens: Count
    max_num_seqs: Count
    gpu_memory_utilization: Fraction
    offload_gib_per_rank: NonNegative = 0
    workload: str = ""
    stages: list[tuple[Positive, Positive]] = Field(min_length=1)
    groups: Count
    per_group: Count
    system_tokens: NonNegativeInt
    question_tokens: Count
    output_tokens: Count
    measured_kv_tokens: Count | None = None

    @field_validator("stages")
    @classmethod
    def _have_requests(cls, stages: list[tuple[float, float]]) -> list[tuple[float, float]]:
        for index, (rate, duration_s) in enumerate(stages):
            if rate * duration_s < 1:
                raise ValueError(f"stage {index}: {rate:g} requests/s for {duration_s:g} s are less than one request")
        return stages

    @property
    def name(self) -> str:
        """``set/id``, or the id without a set."""
        return f"{self.set}/{self.id}" if self.set else self.id


class _Figure(BaseModel):
    """A row of ``measured.csv``."""

    model_config = ConfigDict(allow_inf_nan=False)

    set: str = ""
    id: str
    stage: int = Field(ge=WHOLE)
    metric: str
    ms: float = Field(gt=0)

    @field_validator("metric")
    @classmethod
    def _is_known(cls, metric: str) -> str:
        if metric not in METRICS:
            raise ValueError(f"no metric {described(metric)}{unknown(metric, METRICS)}")
        return metric


@dataclass(frozen=True)
class OpenLoopFailure:
    """A run or folder that was not simulated, and the reason.

    run: index in ``runs.json``, from 0; None where the whole folder cannot be read. set, id: where known.
    """

    folder: str
    run: int | None
    set: str
    id: str
    reason: str


def read_entries(folder: Path) -> tuple[list[OpenLoopRun | OpenLoopFailure], Measured]:
    """Runs of ``folder``, with a failure in place of each invalid one, and their measurements.

    Raises:
        OpenLoopFileError: a file cannot be read, or a figure is not valid.
    """
    path = folder / RUNS
    try:
        documents = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise OpenLoopFileError(f"{path}:{error.lineno}: expected a JSON list of runs: {error.msg}") from None
    if not (isinstance(documents, list) and documents):
        shown = "an empty list" if documents == [] else described(documents)
        raise OpenLoopFileError(f"{path}: expected a JSON list of runs, got {shown}")
    measured = _measured(folder / FIGURES)
    entries: list[OpenLoopRun | OpenLoopFailure] = []
    for index, document in enumerate(documents):
        earlier = {(entry.set, entry.id): entry for entry in entries if isinstance(entry, OpenLoopRun)}
        try:
            run = _run(document)
            if (run.set, run.id) in earlier:
                raise OpenLoopFileError(f"id: {run.name} is a run before this one")
            _check_stages(run, measured)
            entries.append(run)
        except OpenLoopFileError as error:
            names = _named(document, "set"), _named(document, "id")
            entries.append(OpenLoopFailure(str(folder), index, *names, f"{path}: run {index}: {error}"))
    return entries, measured


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise OpenLoopFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise OpenLoopFileError(f"{path}: expected UTF-8: {error}") from None


def _named(document: object, key: str) -> str:
    value = document.get(key, "") if isinstance(document, dict) else ""
    return value if isinstance(value, str) else json.dumps(value)


def _run(document: object) -> OpenLoopRun:
    """The run, or an error that names all its problems."""
    if not isinstance(document, dict):
        raise OpenLoopFileError(f"expected an object, got {described(document)}")
    try:
        return OpenLoopRun.model_validate_json(json.dumps(document), strict=True)
    except ValidationError as error:
        raise OpenLoopFileError(problems(error, list(OpenLoopRun.model_fields))) from None


def problems(error: ValidationError, known: Sequence[str]) -> str:
    """All problems, each with its key; ``known``: the valid keys."""
    return "; ".join(_problem(details, known) for details in error.errors(include_url=False))


def _problem(details: Any, known: Sequence[str]) -> str:
    keypath = details["loc"]
    if details["type"] == "extra_forbidden":
        return f"{dotted(keypath)}: unknown key{unknown(str(keypath[-1]), known)}"
    return ": ".join(text for text in (dotted(keypath), describe(details)) if text)


def _check_stages(run: OpenLoopRun, measured: Measured) -> None:
    """Refuse a run whose measurements have stages that it lacks."""
    last = max((stage for name, id_, stage, _ in measured if (name, id_) == (run.set, run.id)), default=WHOLE)
    if last >= len(run.stages):
        raise OpenLoopFileError(f"stages: {FIGURES} has a stage {last}, but the run ends with {len(run.stages) - 1}")


def _measured(path: Path) -> Measured:
    rows = csv.DictReader(_text(path).splitlines(), strict=True)
    measured: Measured = {}
    try:
        columns = set(rows.fieldnames or ())
        if not ({"stage", "metric", "ms"} <= columns and columns & {"id", "run"}):
            raise ValueError(f"{_FORM}; got {', '.join(rows.fieldnames or ()) or 'none'}")
        for row in rows:
            figure = _figure({name: cell for name, cell in row.items() if cell})
            key = (figure.set, figure.id, figure.stage, figure.metric)
            if key in measured:
                raise ValueError(f"{figure.metric} of run {figure.id}, stage {figure.stage}, was there before")
            measured[key] = figure.ms
    except (ValueError, csv.Error) as error:
        raise OpenLoopFileError(f"{path}:{max(rows.line_num, 1)}: {error}") from None
    return measured


def _figure(cells: dict[str, str]) -> _Figure:
    try:
        return _Figure.model_validate({"id": cells.get("run")} | cells if "run" in cells else cells)
    except ValidationError as error:
        raise ValueError(problems(error, ())) from None
