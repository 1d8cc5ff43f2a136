"""Open-loop serving runs against their measurement: arrivals by the clock, prompts asked for in turn.

A folder holds ``runs.json`` (a list of runs, ``OpenLoopRun``), ``measured.csv`` (``set, run or id, stage, metric, ms``;
stage -1 is the whole run) and ``models/``, models that the catalogue lacks. docs/cli.md has the form.

Notation
    stages     (requests/s, seconds) one after another, ``GAP_S`` apart: exponential gaps, scaled to fill each exactly
    prompts    ``groups * per_group`` fixed ones, asked for in turn, so that all of a prompt but its last page is cached
               from its second time on; those of a group share ``system_tokens``

TTFT and E2E are the client's. ITL is (E2E - TTFT) / (output tokens - 1) of means, as the measurements state it.
"""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from hisearch.simulate.engine import simulate
from hisearch.simulate.plan import WorkerPlan, plan_worker
from hisearch.simulate.result import RequestTable
from hisearch.specs.base import Count, Fraction, NonNegative, NonNegativeInt, Positive, Strict
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.deployment import PoolSpec
from hisearch.specs.model import ModelSpec
from hisearch.specs.profile import LatencyProfileSpec
from hisearch.traces.compiled import F8, CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.sampling import stream
from hisearch.traces.trace import make_trace

METRICS = ("e2e_mean", "e2e_p90", "e2e_p99", "itl_mean", "ttft_mean", "ttft_p90", "ttft_p99")
WHOLE = -1
#: Seconds between the last arrival of a stage and the next stage: its drain and the client's pause (assumed).
GAP_S = 6.0
#: Random tokens, decoded and tokenised again, become more: 574 where 547 were asked for (github inference-sim,
#: ``hypotheses/h30-replay-fidelity``). Their spread by prompt is assumed; it decides what lies behind the last page.
TOKENS_PER_NOMINAL, SPREAD = 574 / 547, 0.01


class OpenLoopFileError(ValueError):
    """A folder of open-loop runs that cannot be read: which file, which run and key, and what was expected."""


class OpenLoopRun(Strict):
    """One measured run, as ``runs.json`` has it."""

    id: str
    set: str = ""
    huggingface_id: str = ""
    model: str = Field(description="Name of the catalogue, or of a file in models/.")
    accelerator: str
    tensor_parallel: Count = 1
    expert_parallel: Count = 1
    engine: str = "vllm"
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

    predicted_kv_tokens: planned capacity. unfinished: requests that did not end in the simulation.
    """

    run: OpenLoopRun
    metrics: dict[str, Figure]
    stages: dict[tuple[int, str], Figure]
    predicted_kv_tokens: int
    unfinished: int


#: Measured milliseconds by (set, run, stage, metric).
Measured = dict[tuple[str, str, int, str], float]


def read_folder(folder: Path) -> tuple[list[OpenLoopRun], Measured]:
    """Runs of ``folder`` and what was measured of them.

    Raises:
        OpenLoopFileError: a file is missing, or a run or a figure is not valid.
    """
    try:
        documents = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise OpenLoopFileError(f"{folder / 'runs.json'}: expected a JSON list of runs: {error}") from error
    if not isinstance(documents, list):
        raise OpenLoopFileError(f"{folder / 'runs.json'}: expected a JSON list of runs")
    return [_run(folder, index, document) for index, document in enumerate(documents)], _measured(folder)


def _run(folder: Path, index: int, document: object) -> OpenLoopRun:
    try:
        return OpenLoopRun.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise OpenLoopFileError(f"{folder / 'runs.json'}: run {index}: {key}: {first['msg']}") from None


def _measured(folder: Path) -> Measured:
    path, found = folder / "measured.csv", {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                run = row.get("run") or row.get("id") or ""
                found[row.get("set") or "", run, int(row["stage"]), row["metric"]] = _milliseconds(row["ms"])
    except OSError as error:
        raise OpenLoopFileError(f"{path}: {error.strerror}") from error
    except (KeyError, ValueError, TypeError) as error:
        raise OpenLoopFileError(
            f"{path}: line {len(found) + 2}: {error}: expected set, id, stage, metric, ms with whole stages and "
            "positive milliseconds"
        ) from error
    return found


def _milliseconds(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"ms is {text}")
    return value


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
    length_of_prompt = np.round(nominal * TOKENS_PER_NOMINAL * spread).astype(np.int64)
    system = round(system_tokens * TOKENS_PER_NOMINAL)
    arrivals: list[F8] = []
    asked, stage_of, start = [], [], 0.0
    for stage, (rate, duration) in enumerate(stages):
        gaps = draw.exponential(1.0 / rate, int(rate * duration))
        arrivals.append(start + np.cumsum(gaps) * (duration / gaps.sum()))
        asked.append(prompts[np.arange(len(gaps)) % len(prompts)])  # a stage begins anew with the first prompt
        stage_of.append(np.full(len(gaps), stage))
        start += duration + GAP_S
    prompt = np.concatenate(asked)
    group = prompt // per_group
    repeated, of_prompt = _first_of(prompt)
    seen, of_group = _first_of(group)
    trace = make_trace(
        arrival_s=np.concatenate(arrivals),
        input_tokens=length_of_prompt[prompt],
        output_tokens=np.full(len(prompt), output_tokens),
        shares_with=np.where(repeated, of_prompt, np.where(seen, of_group, -1)),
        shared_tokens=np.where(repeated, length_of_prompt[prompt], np.where(seen, system, 0)),
    )
    return compile_trace(trace, "open-loop run", "open_loop"), np.concatenate(stage_of)


def _first_of(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each key was there before, and where it was first; both of shape (N,)."""
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
    own = folder / "models" / f"{run.model}.yaml"
    spec: ModelSpec = catalogue.get("Model", str(own.resolve()) if own.exists() else run.model).spec
    return spec


def worker_of(
    run: OpenLoopRun, folder: Path, catalogue: Catalogue, profile_name: str, profile: LatencyProfileSpec
) -> WorkerPlan:
    """The run's worker, compiled.

    Raises:
        SpecError: a model or an accelerator that is not known.
        DoesNotFit, ValueError: see ``plan_worker``.
    """
    pool = pool_of(run)
    accelerator = catalogue.get("Accelerator", run.accelerator).spec
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
    """Simulate a run and set its figures beside the measured ones."""
    trace, stage_of = trace_of(run)
    table = simulate(worker, trace).requests
    simulated = {(WHOLE, name): ms for name, ms in figures(table, table.finished).items()}
    for stage in range(len(run.stages)):
        among = table.finished & (stage_of == stage)
        simulated |= {(stage, name): ms for name, ms in figures(table, among).items()}
    known = {
        key: Figure(ms, simulated[key])
        for key in simulated
        if (ms := measured.get((run.set, run.id, *key))) is not None
    }
    return OpenLoopScore(
        run,
        {name: figure for (stage, name), figure in known.items() if stage == WHOLE},
        {key: figure for key, figure in known.items() if key[0] != WHOLE},
        worker.kv_capacity_tokens,
        int((~table.finished).sum()),
    )


def figures(table: RequestTable, among: np.ndarray) -> dict[str, float]:
    """``METRICS`` of the requests ``among``, milliseconds; NaN where there are none."""
    if not among.any():
        return dict.fromkeys(METRICS, math.nan)
    ttft, e2e = 1e3 * table.ttft_s[among], 1e3 * table.e2e_s[among]
    gaps = np.maximum(table.output_tokens[among] - 1, 1).mean()
    found = {"itl_mean": float((e2e.mean() - ttft.mean()) / gaps)}
    for name, values in (("e2e", e2e), ("ttft", ttft)):
        found |= {f"{name}_mean": float(values.mean())}
        found |= {f"{name}_p{p}": float(np.percentile(values, p)) for p in (90, 99)}
    return {name: found[name] for name in METRICS}


def score_folders(folders: Sequence[Path], catalogue: Catalogue, profile_name: str = "auto") -> Iterable[OpenLoopScore]:
    """Every run of every folder, in turn.

    Raises:
        OpenLoopFileError: see ``read_folder``.
        SpecError, DoesNotFit, ValueError: see ``worker_of``.
    """
    profile = catalogue.get("LatencyProfile", profile_name).spec
    for folder in folders:
        runs, measured = read_folder(folder)
        for run in runs:
            yield score_run(run, worker_of(run, folder, catalogue, profile_name, profile), measured)
