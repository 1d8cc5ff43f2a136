"""MLPerf Inference's rules: models and limits, answers' lengths, how long a run lasts, and which tokens count.

MLCommons' inference rules of v5.0 to v6.0, and loadgen (``mlperf.conf``; ``results.cc: LogSummary``). Server and
Interactive are Poisson arrivals whose p99 of TTFT and of TPOT are bounded; Offline has no bounds, and all queries are
there at once. The published figure of each is tokens over the time until the last answer ends: the drain of a run
counts.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import I8
from hisearch.search.evaluate.simulation import Simulation
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.sampling import stream
from hisearch.traces.trace import make_trace


class Benchmark(NamedTuple):
    """A model of the benchmark: its name in the catalogue, mean and most tokens of an answer, limits by scenario.

    mean_tokens: of what submissions generate; the reference answers are scaled to it, and cut at ``most_tokens``.
    limits: scenario -> (TTFT, TPOT), seconds at the 99th percentile (loadgen's ``mlperf.conf``). compiled: whether
    TensorRT-LLM served it as a compiled engine in round 5.1. drafts: scenario -> tokens that the model's own head may
    draft, a chain of them (appendix of MLCommons' ``inference_rules.adoc``).
    """

    model: str
    mean_tokens: float
    most_tokens: int
    limits: Mapping[str, tuple[float, float]]
    compiled: bool = True
    drafts: Mapping[str, int] = {}


BENCHMARKS = {
    "llama2-70b": Benchmark("llama-2-70b", 294.45, 1024, {"Server": (2.0, 0.2), "Interactive": (0.45, 0.04)}),
    "mixtral-8x7b": Benchmark("mixtral-8x7b", 144.84, 1024, {"Server": (2.0, 0.2)}),
    "llama3.1-8b": Benchmark("llama-3.1-8b", 128.0, 128, {"Server": (2.0, 0.1), "Interactive": (0.5, 0.03)}),
    "llama3.1-405b": Benchmark("llama-3.1-405b", 684.68, 20_000, {"Server": (6.0, 0.175), "Interactive": (4.5, 0.08)}),
    "deepseek-r1": Benchmark(
        "deepseek-r1",
        3886.23,
        20_000,
        {"Server": (2.0, 0.08), "Interactive": (1.5, 0.015)},
        compiled=False,
        drafts={"Interactive": 3},
    ),
}
OFFLINE = "Offline"

#: (Engine, model) -> scenario -> seconds of a run; "" for other models. ``min_duration`` of published ``user.conf``:
#: NVIDIA's and HPE's in round 5.0 (1,200 to 3,600), AMD's in round 5.1. The rules ask for 600.
RUNS_S = {
    ("trtllm", ""): {OFFLINE: 2400.0, "Server": 2400.0, "Interactive": 1200.0},
    ("vllm", ""): {OFFLINE: 2400.0, "Server": 600.0, "Interactive": 600.0},
    ("vllm", "mixtral-8x7b"): {OFFLINE: 1200.0, "Server": 1200.0},
}


def run_s(engine: str, model: str, scenario: str) -> float:
    """Seconds of a run of ``model`` (a key of ``BENCHMARKS``) under ``engine``."""
    return RUNS_S.get((engine, model), RUNS_S[engine, ""])[scenario]


@dataclass(frozen=True)
class Lengths:
    """Prompt and output tokens of each query, shape (N,), and the limit that clients declare."""

    input_tokens: I8
    output_tokens: I8
    most_tokens: int

    @property
    def mean_output(self) -> float:
        """Output tokens of a query, on average."""
        return float(self.output_tokens.mean())


@cache
def _lengths_of(path: Path) -> tuple[I8, I8]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64)
    return rows[:, 0], rows[:, 1]


def read_lengths(path: Path, benchmark: Benchmark) -> Lengths:
    """A data set whose answers are scaled to what submissions generate on average, each cut at the limit.

    Raises:
        OSError, ValueError: the file cannot be read.
    """
    inputs, references = _lengths_of(path)
    low, high = 0.0, benchmark.most_tokens / max(float(references.mean()), 1.0) * 16
    for _ in range(60):  # the mean of the cut lengths rises with the factor
        factor = (low + high) / 2
        outputs = np.clip(np.rint(references * factor), 1, benchmark.most_tokens).astype(np.int64)
        low, high = (factor, high) if outputs.mean() < benchmark.mean_tokens else (low, factor)
    return Lengths(np.maximum(inputs, 1), outputs, benchmark.most_tokens)


def queries(name: str, lengths: Lengths, count: int, *, rate_rps: float | None) -> CompiledTrace:
    """Queries drawn without replacement, again where more are asked for; Poisson arrivals, or all at once (None)."""
    rng, total = stream("mlperf queries", 0), len(lengths.input_tokens)
    drawn = np.concatenate([rng.permutation(total) for _ in range(-(-count // total))])[:count]
    arrival_s = np.zeros(count)
    if rate_rps is not None:
        arrival_s = np.cumsum(stream("mlperf arrivals", 0).exponential(1.0, count)) / rate_rps
    trace = make_trace(
        arrival_s=arrival_s,
        input_tokens=lengths.input_tokens[drawn],
        output_tokens=lengths.output_tokens[drawn],
        max_output_tokens=np.full(count, lengths.most_tokens),
    )
    return compile_trace(trace, name)


class Rates(NamedTuple):
    """Tokens per second of a run: until the last answer ends, and until the last one begins, before the drain."""

    completed: float
    undrained: float


def run_rates(simulation: Simulation, deployment: DeploymentSpec, trace: CompiledTrace) -> Rates:
    """Replay ``trace`` on ``deployment``. Raises ``TRIAL_ERRORS`` where it cannot run."""
    table = simulation.replay(deployment, trace).requests
    return Rates(float(table.output_tokens.sum()) / float(table.finish_s.max()), _undrained(table))


def _undrained(table: RequestTable) -> float:
    """Tokens per second until the last first token; each answer's come evenly."""
    last_s = float(table.first_token_s.max())
    made = (last_s - table.first_token_s) / np.maximum(table.finish_s - table.first_token_s, 1e-9)
    return float((table.output_tokens * np.clip(made, 0.0, 1.0)).sum()) / last_s
