"""``hisearch validate mlperf``: the largest rates that tuned submissions reached, beside those that a search finds.

A folder holds ``results.csv`` (``round, id, submitter, system, accelerator, accelerators, model, scenario,
tokens_per_s``) and ``datasets/<model>.csv.gz`` (``input_length, output_length`` of each query). A cell is a model on an
accelerator in a scenario, on the number of accelerators that most of its submissions have. Each is searched as by
``hisearch size --have``. Nothing is fitted; what is assumed is stated in docs/formats.md.

Rules of the benchmark: ``mlperf_protocol``.
"""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.api.mlperf_protocol import (
    BENCHMARKS,
    OFFLINE,
    Benchmark,
    Lengths,
    Rates,
    queries,
    read_lengths,
    run_rates,
    run_s,
)
from hisearch.api.studies.largest import largest_rate
from hisearch.api.studies.study import Study
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.deployments import describe
from hisearch.search.model.job import TRIAL_ERRORS
from hisearch.search.rate.entrants import Entrant, entrants_of
from hisearch.search.stages.screening import screen
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question
from hisearch.specs.errors import SpecError

#: Parts of the accelerators' names in the table, most particular first -> names of the catalogue.
ACCELERATORS = {
    "GB300": "gb300",
    "GB200": "gb200",
    "B300": "b300",
    "B200": "b200",
    "GH200": "gh200",
    "H200-NVL": "h200-nvl",
    "H200": "h200",
    "H100-NVL": "h100-nvl",
    "H100-PCIe": "h100-pcie",
    "H100": "h100-sxm",
    "L40S": "l40s",
    "RTX PRO 6000": "rtx-pro-6000",
    "MI355X": "mi355x",
    "MI350X": "mi350x",
    "MI325X": "mi325x",
    "MI300X": "mi300x",
}


#: Queries of the data set that a workload draws, without replacement; it is carried on by repetition.
QUERIES = 8192

#: Deployments whose Offline run is simulated in full, and the run that chooses them: its seconds, and how many times as
#: many queries as run at once it has at least. Long answers outlast the seconds.
FINALISTS = 4
BRIEF_S = 100.0
BRIEF_ROUNDS = 4

#: Seconds of a cell's search.
SECONDS = 60.0

#: Engine -> round -> its release of the month of submission; and TensorRT-LLM's where it is not compiled.
RELEASES = {
    "trtllm": {"5.0": "0.17.0", "5.1": "0.21.0", "6.0": "1.2.0rc6"},
    "vllm": {"5.0": "0.7.2", "5.1": "0.10.0", "6.0": "0.15.1"},
}
UNCOMPILED = {"5.1": "1.0.0rc3"}
#: AMD's vLLM is a fork that makes 7 to 11 steps of decodes between two looks at the queue (``num_scheduler_steps`` of
#: its published configurations). No release that is modelled does; the newest hides the host's work likewise.
FORKED = "mi"

#: Settings that are searched. NVIDIA's harness gives a query to the engine with the fewest prompt tokens pending
#: (``isl_load_balancing`` in nv_mlpinf's factory of servers). The KV cache is fp8. Weights are too, or of four bits
#: where the accelerator multiplies these.
_SPACE = (
    "spec.space.execution.kv_dtypes=[fp8]",
    "spec.space.execution.tensor_parallel=[1,2,4,8]",
    "spec.space.execution.pipeline_parallel=[1,2]",
    "spec.space.execution.chunk_tokens=[512,1024,2048,4096,8192]",
    "spec.space.execution.max_running_requests=[128,256,512,1024,2048]",
    # Harnesses call the engine and take tokens, not text: no server stands in front, or too little of one to count.
    "spec.space.execution.api_servers=64",
    "spec.space.routing.policies=[least_outstanding_tokens]",
    "spec.space.pools.disaggregated=null",
)


@dataclass(frozen=True)
class Submissions:
    """Results of one cell. version: release of the best one's round. tokens_per_s: generated, per accelerator."""

    model: str
    accelerator: str
    scenario: str
    engine: str
    version: str
    accelerators: int
    tokens_per_s: tuple[float, ...]


@dataclass(frozen=True)
class Cell:
    """A cell: figures per accelerator, tokens generated per second. simulated: None where it was skipped, by reason."""

    model: str
    accelerator: str
    scenario: str
    engine: str
    version: str
    accelerators: int
    submissions: int
    best_tokens_per_s: float
    median_tokens_per_s: float
    simulated_tokens_per_s: float | None = None
    settings: str = ""
    skipped: str = ""
    wall_s: float = 0.0

    @property
    def ratio(self) -> float:
        """Simulated over best; NaN where it was skipped."""
        return math.nan if self.simulated_tokens_per_s is None else self.simulated_tokens_per_s / self.best_tokens_per_s

    def to_dict(self) -> dict[str, Any]:
        """For machines, see docs/json.md."""
        return {**vars(self), "ratio": None if self.simulated_tokens_per_s is None else self.ratio}


def validate_mlperf(
    folder: Path, *, only: Mapping[str, str] | None = None, workers: int | None = None, seconds: float = SECONDS,
    advanced: Callable[[Cell], None] = lambda _: None,
) -> list[Cell]:  # fmt: skip
    """Search every cell of a folder.

    Args:
        folder: see the module.
        only: column (model, accelerator, scenario, engine) -> the value that cells must have.
        workers: threads; all cores where absent.
        seconds: of each cell's search.
        advanced: called with every cell when it is done.

    Raises:
        OSError: a file cannot be read.
        ValueError: a row is malformed; says which.
    """
    cells = []
    for group in read_results(folder / "results.csv"):
        if any(getattr(group, column) != value for column, value in (only or {}).items()):
            continue
        cells.append(_searched(group, folder, workers, seconds))
        advanced(cells[-1])
    return cells


def read_results(path: Path) -> list[Submissions]:
    """The cells of ``results.csv``, in order of model, accelerator and scenario.

    Raises:
        OSError: the file cannot be read. ValueError: a row is malformed; says which.
    """
    figures: dict[tuple[str, str, str], list[tuple[int, float, str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                count, tokens = int(row["accelerators"]), float(row["tokens_per_s"])
                key = (row["model"], _catalogue_name(row["accelerator"]), row["scenario"])
                of = (row["system"], row["round"])
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: expected the columns of an MLPerf result, got {error}") from error
            figures.setdefault(key, []).append((count, tokens / count, *of))
    cells = []
    for (model, accelerator, scenario), rows in sorted(figures.items()):
        count = Counter(count for count, *_ in rows).most_common(1)[0][0]
        forked = accelerator.startswith(FORKED)
        engine = "vllm" if forked or all("vllm" in system.lower() for _, _, system, _ in rows) else "trtllm"
        best_round = max(rows, key=lambda row: row[1])[3]
        releases = RELEASES[engine]
        if engine == "trtllm" and model in BENCHMARKS and not BENCHMARKS[model].compiled:
            releases = releases | UNCOMPILED
        version = "" if forked else releases.get(best_round, "")
        rates = tuple(rate for _, rate, _, _ in rows)
        cells.append(Submissions(model, accelerator, scenario, engine, version, count, rates))
    return cells


def _catalogue_name(accelerator: str) -> str:
    """The catalogue's name of an accelerator of the table; the table's own where none is known."""
    return next((name for part, name in ACCELERATORS.items() if part.lower() in accelerator.lower()), accelerator)


def _searched(group: Submissions, folder: Path, workers: int | None, seconds: float) -> Cell:
    """The cell of a group of submissions."""
    began = time.monotonic()
    cell = Cell(
        group.model, group.accelerator, group.scenario, group.engine, group.version, group.accelerators,
        len(group.tokens_per_s), max(group.tokens_per_s), float(np.median(group.tokens_per_s)),
    )  # fmt: skip
    benchmark = BENCHMARKS.get(group.model)
    if benchmark is None:
        return _with(cell, skipped=f"rules and answers of {group.model} are not known here")
    try:
        Catalogue().locate("Accelerator", group.accelerator)
    except SpecError:
        return _with(cell, skipped=f"no accelerator {group.accelerator} in the catalogue")
    if group.scenario != OFFLINE and group.scenario not in benchmark.limits:
        return _with(cell, skipped=f"limits of {group.scenario} are not known here")
    lengths = read_lengths(folder / "datasets" / f"{group.model}.csv.gz", benchmark)
    try:
        study = _study(group, benchmark, lengths)
        tokens, settings = (
            _offline(study, group, lengths, workers, seconds)
            if group.scenario == OFFLINE
            else _largest(study, group, lengths, workers, seconds)
        )
    except TRIAL_ERRORS as error:
        return _with(cell, skipped=str(error))
    wall_s = round(time.monotonic() - began, 1)
    return _with(cell, simulated_tokens_per_s=tokens / group.accelerators, settings=settings, wall_s=wall_s)


def _with(cell: Cell, **changes: Any) -> Cell:
    return Cell(**{**vars(cell), **changes})


def _study(group: Submissions, benchmark: Benchmark, lengths: Lengths) -> Study:
    """The cell as a question: its accelerators, its limits, one query a second."""
    ttft_s, tpot_s = benchmark.limits.get(group.scenario, (1e6, 1e6))
    question = Question(
        model=benchmark.model,
        slo=f"ttft p99 < {ttft_s:g}s, tpot p99 < {tpot_s * 1e3:g}ms",
        input="1000",  # the trace replaces both
        output="100",
        rate=1.0,
        gpu=(group.accelerator,),
        engine=(group.engine,),
        have=(group.accelerator, group.accelerators),
    )
    peaks = Catalogue().get("Accelerator", group.accelerator).spec.peak_flops
    narrow = ["fp4" if group.accelerator.startswith("mi") else "nvfp4"] if "fp4" in peaks else []
    own: dict[str, Any] = {"versions": {group.engine: group.version}, "weight_dtypes": ["fp8", *narrow]}
    if (drafts := benchmark.drafts.get(group.scenario)) is not None:
        own["speculation"] = [None, {"method": "mtp", "draft_tokens": drafts}]
    overrides = [f"spec.space.execution.{key}={json.dumps(value)}" for key, value in own.items()]
    resolved = study_from_question(question, overrides=(*_SPACE, *overrides)).resolved
    return Study(resolved, queries(group.model, lengths, QUERIES, rate_rps=1.0))


def _largest(
    study: Study, group: Submissions, lengths: Lengths, workers: int | None, seconds: float
) -> tuple[float, str]:
    """Tokens per second of a run at the largest rate within the limits, and the settings."""
    answer = largest_rate(study, workers=workers, seconds=seconds, around=False)
    if answer.trial is None:
        return 0.0, ""
    count = round(answer.rate_rps * run_s(group.engine, group.model, group.scenario))
    run = queries(group.model, lengths, count, rate_rps=answer.rate_rps)
    return run_rates(answer.simulation, answer.trial.deployment, run).completed, _settings(answer.trial.deployment)


def _offline(
    study: Study, group: Submissions, lengths: Lengths, workers: int | None, seconds: float
) -> tuple[float, str]:
    """Tokens per second of the fastest deployment with all queries there at once, and the settings.

    One worker stands for all: it has its share of the queries, of as many as last the run by stage 1's estimate. The
    fastest in a brief run, without its drain, are simulated in full.
    """
    from joblib import Parallel, delayed

    simulation, began = Simulation(study.world()), time.monotonic()
    threads = workers or os.cpu_count() or 1

    def rates_of(entrant: Entrant, duration_s: float) -> Rates:
        pool, count = entrant.deployment.pool, _queries_of_worker(entrant, duration_s)
        worker = entrant.deployment.model_copy(update={"pools": [pool.model_copy(update={"replicas": 1})]})
        try:
            rates = run_rates(simulation, worker, queries(group.model, lengths, count, rate_rps=None))
        except TRIAL_ERRORS:
            return Rates(0.0, 0.0)
        return Rates(*(rate * pool.replicas for rate in rates))

    def run_all(entrants: Sequence[Entrant], duration_s: float) -> list[tuple[Rates, Entrant]]:
        rates: list[Rates] = []
        for batch in _batches(entrants, threads):
            if rates and time.monotonic() - began > seconds:
                break
            rates += Parallel(n_jobs=threads, backend="threading")(
                delayed(rates_of)(entrant, duration_s) for entrant in batch
            )
        return list(zip(rates, entrants, strict=False))

    entrants = entrants_of(study.problem(simulation), screen(study.problem(simulation), 10_000))
    if not entrants:
        return 0.0, ""
    brief = sorted(run_all(entrants, BRIEF_S), key=lambda run: -run[0].undrained)
    finalists = [entrant for _, entrant in brief[:FINALISTS]]
    rates, best = max(run_all(finalists, run_s(group.engine, group.model, OFFLINE)), key=lambda run: run[0].completed)
    return rates.completed, _settings(best.deployment)


def _queries_of_worker(entrant: Entrant, duration_s: float) -> int:
    """Queries of one of the entrant's workers: ``duration_s`` long by its estimate, and several rounds of its batch."""
    pool = entrant.deployment.pool
    at_once = pool.engine.max_running_requests * pool.parallelism.attention_data
    return max(round(entrant.estimate_rps / pool.replicas * duration_s), BRIEF_ROUNDS * at_once)


def _batches(entrants: Sequence[Entrant], size: int) -> Iterator[Sequence[Entrant]]:
    return (entrants[at : at + size] for at in range(0, len(entrants), size))


def _settings(deployment: Any) -> str:
    engine = deployment.pool.engine
    policy = f", {engine.capacity_policy}" if engine.name == "trtllm" else ""
    return (
        f"{describe(deployment)}, {deployment.pool.parallelism}, chunks of {engine.chunk_tokens:,}, up to "
        f"{engine.max_running_requests:,} running{policy}"
    )
