"""Open-loop serving runs against their measurement: arrivals by the clock, prompts sent in turn.

A folder holds ``runs.json`` (a list of runs, ``OpenLoopRun``), ``measured.csv`` (``set, run or id, stage, metric, ms``;
stage -1 is the whole run) and ``models/``, models that the catalogue lacks (``open_loop_file``).

Notation
    stages     (requests/s, seconds) one after another, ``GAP_S`` apart: exponential gaps, scaled to fill each exactly
    prompts    ``groups * per_group`` fixed ones, sent in turn, so that all of a prompt but its last page is cached
               from its second time on; those of a group share ``system_tokens``

TTFT and E2E are the client's. ITL is (E2E - TTFT) / (output tokens - 1) of means, as the measurements state it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from hisearch.base.dtypes import F8
from hisearch.simulate.engine import simulate
from hisearch.simulate.plans.plan import WorkerPlan, plan_worker
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import SpecError, UnknownReferenceError
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.sampling import stream
from hisearch.traces.trace import make_trace
from hisearch.validate.open_loop_file import (
    METRICS,
    RUNS,
    WHOLE,
    Measured,
    OpenLoopFailure,
    OpenLoopFileError,
    OpenLoopRun,
    problems,
    read_entries,
)

#: Seconds between the last arrival of a stage and the next stage: its drain and the client's pause (assumed).
GAP_S = 6.0
#: Random tokens become more when decoded and tokenised again: 574 for 547 requested (github inference-sim,
#: ``hypotheses/h30-replay-fidelity``); 565 to 576 by the tokenisers of the models here, with a spread by prompt of 0.7
#: to 1.4 % (docs/notes/2026-11-host-work.md). It decides the tokens behind the last page.
TOKENS_PER_NOMINAL, SPREAD = 574 / 547, 0.01
#: Simulated over measured mean TTFT above which a run overloads in the simulation alone.
OVERLOAD = 10.0


@dataclass(frozen=True)
class Figure:
    """One figure in milliseconds; error relative to the measured."""

    measured_ms: float
    simulated_ms: float

    @property
    def error(self) -> float:
        """Signed, as a fraction."""
        return self.simulated_ms / self.measured_ms - 1.0


@dataclass(frozen=True)
class OpenLoopScore:
    """One run: each measured metric of the whole run, by its name, and of its stages, by (stage, name).

    requests: of the run. predicted_kv_tokens: planned capacity. unfinished: requests that did not end in the
    simulation. profile: which priced it. warnings: of its pricing.
    """

    run: OpenLoopRun
    metrics: dict[str, Figure]
    stages: dict[tuple[int, str], Figure]
    predicted_kv_tokens: int
    unfinished: int
    requests: int
    profile: str
    warnings: tuple[str, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether any of its metrics was measured, of the whole run or of a stage."""
        return bool(self.metrics or self.stages)

    @property
    def overloaded(self) -> bool:
        """Whether it overloads in the simulation but not in the measurement; see ``OVERLOAD``."""
        ttft = self.metrics.get("ttft_mean")
        return ttft is not None and ttft.simulated_ms > OVERLOAD * ttft.measured_ms


def trace_of(run: OpenLoopRun, seed: int = 1) -> tuple[CompiledTrace, np.ndarray]:
    """The requests of a run, and the stage of each, shape (N,). Runs of one workload have the same."""
    workload = (tuple(run.stages), run.groups, run.per_group, run.system_tokens, run.question_tokens, run.output_tokens)
    return _workload(*workload, seed)


@functools.lru_cache(maxsize=32)
def _workload(
    stages: tuple[tuple[float, float], ...],
    groups: int,
    per_group: int,
    system_tokens: int,
    question_tokens: int,
    output_tokens: int,
    seed: int,
) -> tuple[CompiledTrace, np.ndarray]:
    draw = stream("open-loop", seed)
    prompts = draw.permutation(groups * per_group)
    nominal = system_tokens + question_tokens
    spread = 1.0 + SPREAD * draw.standard_normal(len(prompts))
    system = round(system_tokens * TOKENS_PER_NOMINAL)
    drawn = np.round(nominal * TOKENS_PER_NOMINAL * spread).astype(np.int64)
    length_of_prompt = np.maximum(drawn, system + 1)  # its group's tokens, and a question
    arrivals: list[F8] = []
    prompts_by_stage, stage_of, start = [], [], 0.0
    for stage, (rate, duration) in enumerate(stages):
        gaps = draw.exponential(1.0 / rate, int(rate * duration))
        arrivals.append(start + np.cumsum(gaps) * (duration / gaps.sum()))
        prompts_by_stage.append(
            prompts[np.arange(len(gaps)) % len(prompts)]
        )  # every stage starts again with the first prompt
        stage_of.append(np.full(len(gaps), stage))
        start += duration + GAP_S
    prompt = np.concatenate(prompts_by_stage)
    group = prompt // per_group
    prompt_repeated, of_prompt = _first_of(prompt)
    group_repeated, of_group = _first_of(group)
    trace = make_trace(
        arrival_s=np.concatenate(arrivals),
        input_tokens=length_of_prompt[prompt],
        output_tokens=np.full(len(prompt), output_tokens),
        shares_with=np.where(prompt_repeated, of_prompt, np.where(group_repeated, of_group, -1)),
        shared_tokens=np.where(prompt_repeated, length_of_prompt[prompt], np.where(group_repeated, system, 0)),
    )
    return compile_trace(trace, "open-loop run", "open_loop"), np.concatenate(stage_of)


def _first_of(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each key occurred before, and its first index; both of shape (N,)."""
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    earliest = first[which]
    return earliest < np.arange(len(keys)), earliest


def pool_of(run: OpenLoopRun) -> PoolSpec:
    """The run's one worker."""
    engine = {
        "name": run.engine,
        "version": run.engine_version,
        "chunk_tokens": run.max_num_batched_tokens,
        "max_running_requests": run.max_num_seqs,
        "memory_fraction": run.gpu_memory_utilization,
    }
    gib = run.offload_gib_per_rank * run.tensor_parallel
    return PoolSpec.model_validate(
        {
            "accelerator": run.accelerator,
            "tensor_parallel": run.tensor_parallel,
            "expert_parallel": run.expert_parallel,
            "engine": engine,
            "tiers": [{"medium": "ddr5", "gib": gib}] if gib else [],
        }
    )


def model_of(run: OpenLoopRun, folder: Path, catalogue: Catalogue) -> ModelSpec:
    """The run's model: that of the folder, else of the catalogue.

    Raises:
        SpecError: there is none, or it is not valid.
    """
    local = folder / "models" / f"{run.model}.yaml"
    if local.exists():
        spec: ModelSpec = catalogue.get("Model", str(local.resolve())).spec
        return spec
    shipped: ModelSpec = _catalogue_spec(catalogue, "Model", "model", run.model, f"; nor is there a file {local}")
    return shipped


def _catalogue_spec(catalogue: Catalogue, kind: str, key: str, ref: str, also: str = "") -> Any:
    """The catalogue's spec; without one, an error with the run's key, and ``also`` appended."""
    try:
        return catalogue.get(kind, ref).spec
    except UnknownReferenceError as error:
        raise UnknownReferenceError.at(f"{error}{also}", key=key) from None


def worker_of(
    run: OpenLoopRun, folder: Path, catalogue: Catalogue, profile_name: str, profile: LatencyProfileSpec
) -> WorkerPlan:
    """The run's worker, compiled.

    Raises:
        SpecError: a model or an accelerator that is not known.
        DoesNotFit, ValueError: see ``plan_worker``.
    """
    pool = pool_of(run)
    accelerator = _catalogue_spec(catalogue, "Accelerator", "accelerator", run.accelerator)
    host = accelerator.host
    return plan_worker(
        pool,
        model=model_of(run, folder, catalogue),
        accelerator=accelerator,
        host=catalogue.get("Host", host).spec if host is not None else None,
        media={tier.medium: catalogue.get("Medium", tier.medium).spec for tier in pool.tiers},
        profile=profile,
        profile_name=profile_name,
    )


def score_run(run: OpenLoopRun, worker: WorkerPlan, measured: Measured) -> OpenLoopScore:
    """Simulate a run and pair its figures with the measured ones."""
    trace, stage_of = trace_of(run)
    table = simulate(worker, trace).requests
    simulated = {(WHOLE, name): ms for name, ms in figures(table, table.finished).items()}
    for stage in range(len(run.stages)):
        among = table.finished & (stage_of == stage)
        simulated |= {(stage, name): ms for name, ms in figures(table, among).items()}
    compared = {
        key: Figure(ms, simulated[key])
        for key in simulated
        if (ms := measured.get((run.set, run.id, *key))) is not None
    }
    return OpenLoopScore(
        run,
        {name: figure for (stage, name), figure in compared.items() if stage == WHOLE},
        {key: figure for key, figure in compared.items() if key[0] != WHOLE},
        worker.kv_capacity_tokens,
        int((~table.finished).sum()),
        len(table.arrival_s),
        worker.costs.profile,
        tuple(worker.costs.warnings),
    )


def figures(table: RequestTable, among: np.ndarray) -> dict[str, float]:
    """``METRICS`` of the requests ``among``, milliseconds; NaN without any."""
    if not among.any():
        return dict.fromkeys(METRICS, math.nan)
    ttft, e2e = 1e3 * table.ttft_s[among], 1e3 * table.e2e_s[among]
    gaps = np.maximum(table.output_tokens[among] - 1, 1).mean()
    values_ms = {"itl_mean": float((e2e.mean() - ttft.mean()) / gaps)}
    for name, values in (("e2e", e2e), ("ttft", ttft)):
        values_ms |= {f"{name}_mean": float(values.mean())}
        values_ms |= {f"{name}_p{p}": float(np.percentile(values, p)) for p in (90, 99)}
    return {name: values_ms[name] for name in METRICS}


def score_folders(
    folders: Sequence[Path],
    catalogue: Catalogue,
    profile_name: str = "auto",
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[OpenLoopScore | OpenLoopFailure]:
    """Every run of every folder, in turn; a run that cannot be simulated yields a failure, and the others go on.

    Args:
        folders: see ``open_loop_file``; all are read before anything is simulated.
        catalogue: of models, accelerators and profiles.
        profile_name: the LatencyProfile of all runs.
        note: called with a line before each run is simulated.

    Raises:
        SpecError: no such profile.
    """
    profile = catalogue.get("LatencyProfile", profile_name).spec
    read = [_entries(folder) for folder in folders]
    total, at = sum(len(entries) for entries, _ in read), 0
    for folder, (entries, measured) in zip(folders, read, strict=True):
        for index, entry in enumerate(entries):
            at += 1
            if isinstance(entry, OpenLoopFailure):
                yield entry
                continue
            note(f"run {at} of {total}: {entry.name}, {entry.model} on {entry.accelerator}")
            try:
                yield score_run(entry, worker_of(entry, folder, catalogue, profile_name, profile), measured)
            except (ValueError, OSError, MemoryError) as error:
                reason = f"{folder / RUNS}: run {index}: {_reason(error)}"
                yield OpenLoopFailure(str(folder), index, entry.set, entry.id, reason)


def _entries(folder: Path) -> tuple[list[OpenLoopRun | OpenLoopFailure], Measured]:
    """Result of ``read_entries``; an unreadable folder is one failure."""
    try:
        return read_entries(folder)
    except OpenLoopFileError as error:
        return [OpenLoopFailure(str(folder), None, "", "", str(error))], {}


def _reason(error: Exception) -> str:
    """The error as one line."""
    if isinstance(error, ValidationError):
        return problems(error, ())
    if isinstance(error, SpecError):
        return "; ".join(str(problem) for problem in error.problems)
    return " ".join(str(error).split()) or type(error).__name__
