"""A study whose deployment is measured by the simulator itself, and the files that benchmark tools write of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.api.deployments.deployment import plan_deployment
from hisearch.api.studies.exporting import benchmark_of
from hisearch.api.studies.result import StudyResult
from hisearch.latency.corrections import corrected
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.documents.resolve import load_deployment
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.changes.replay import Replay
from hisearch.verify.prediction import Correction, corrected_fleet

_AS_PREDICTED = Correction()
STUDY = """\
apiVersion: hisearch/v1
kind: Study
metadata: {name: measured}
spec:
  model: llama-3.1-8b
  workload:
    trace:
      generator:
        requests: 400
        arrivals: {process: poisson, rate_rps: 3.0}
        first_input: {distribution: lognormal, mean_log: 7.5, sigma_log: 0.6, max_tokens: 6000}
        output: {distribution: lognormal, mean_log: 4.6, sigma_log: 0.5, max_tokens: 600}
        sessions:
          continue_probability: [0.7]
          think: {p50_s: 2.0, p90_s: 6.0}
  slo:
    terms:
      - {metric: ttft_s, percentile: 99, at_most_s: 3.0}
      - {metric: tpot_s, percentile: 99, at_most_s: 0.12}
  space:
    execution:
      accelerators: [l40s]
      engines: [vllm]
      tensor_parallel: [1]
      weight_dtypes: [bf16]
      chunk_tokens: [2048]
      max_running_requests: [64]
      max_replicas: 12
    routing: {policies: [consistent_hashing]}
    cache: {tiers: []}
  budget: {simulations: 20, seconds: 300}
"""


def measure(
    result: StudyResult,
    *,
    factors: CorrectionSpec | None = None,
    front_end_s: float = 0.0,
    hits_lost: float = 0.0,
    arrival_s: np.ndarray | None = None,
    by_pool: Mapping[str, CorrectionSpec] | None = None,
    hand_over: float = 1.0,
    number: int | None = None,
) -> tuple[Replay, np.ndarray, RequestTable]:
    """What a deployment whose terms are other than the model's does with the run's benchmark, in the order sent.

    hits_lost: by giving the first requests in order, not those that ``verify`` chooses, blocks of their own.
    number: of the trial that is measured; the recommendation's where absent.
    by_pool: factors of single pools, instead of ``factors``. hand_over: on the time that KV takes between workers.
    """
    if number is None:
        assert result.recommendation is not None
        number = result.recommendation.trial.number
    trial = result.trials[number]
    replay = benchmark_of(result.simulation, trial).replay
    if hits_lost:
        chosen = set(np.random.default_rng(7).permutation(len(replay))[: round(hits_lost * len(replay))].tolist())
        blocks = tuple(
            tuple(1_000_000 + 2000 * at + k for k in range(len(ids))) if at in chosen else ids
            for at, ids in enumerate(replay.block_ids)
        )
        replay = replace(replay, block_ids=blocks)
    times = replay.arrival_s if arrival_s is None else arrival_s
    fleet = result.simulation.fleet(trial.deployment)
    pools = [replace(pool, plan=replace(pool.plan, ignore_eos=True)) for pool in fleet.pools]
    pools = [
        replace(
            pool, plan=replace(pool.plan, costs=corrected(pool.plan.costs, (by_pool or {}).get(pool.name, factors)))
        )
        for pool in pools
    ]
    transfer = replace(
        fleet.transfer,
        base_s=hand_over * fleet.transfer.base_s,
        bytes_per_s=fleet.transfer.bytes_per_s / hand_over,
    )
    fleet = replace(fleet, pools=tuple(pools), transfer=transfer)
    measured = simulate_fleet(fleet, replay.compile("measured", times), seed=result.resolved.study.seed)
    back = np.argsort(np.argsort(times, kind="stable"))
    table = measured.requests
    columns = {name: values[back] for name, values in table.columns().items()}
    columns["first_token_s"] = columns["first_token_s"] + front_end_s
    columns["finish_s"] = columns["finish_s"] + front_end_s
    return replay, times, RequestTable(**columns)


def random_requests(count: int = 160, rate_rps: float = 2.0) -> Replay:
    """As of ``--dataset-name random``: prompts share nothing."""
    draw = np.random.default_rng(1)
    return Replay(
        np.cumsum(draw.exponential(1 / rate_rps, count)), draw.integers(300, 1500, count),
        draw.integers(20, 200, count), tuple((place,) for place in range(count)), 1 << 30, np.arange(count),
    )  # fmt: skip


def served(
    ref: str | Path,
    replay: Replay,
    correction: Correction = _AS_PREDICTED,
    *,
    in_flight: int | None = None,
    **settings: str,
) -> RequestTable:
    """What a corrected deployment does with the requests, as the simulator says."""
    fleet = plan_deployment(load_deployment(ref, [f"{key}={value}" for key, value in settings.items()]))
    trace = replay.compile("served", in_flight=in_flight)
    return simulate_fleet(corrected_fleet(fleet, correction), trace, pooled=in_flight is not None).requests


def _gaps(table: RequestTable) -> list[list[float]]:
    """Equal gaps between the tokens of each request."""
    counts = table.output_tokens - 1
    return [[float(tpot)] * int(count) for tpot, count in zip(table.tpot_s, counts, strict=True)]


def _summary(table: RequestTable, e2e: str) -> dict[str, Any]:
    several = table.output_tokens > 1
    seconds = {"ttft": table.ttft_s, "tpot": table.tpot_s[several], e2e: table.e2e_s}
    seconds["itl"] = np.repeat(table.tpot_s, table.output_tokens - 1)
    figures: dict[str, Any] = {}
    for name, values in seconds.items():
        figures[f"mean_{name}_ms"] = 1e3 * float(values.mean())
        figures[f"median_{name}_ms"] = 1e3 * float(np.median(values))
        figures[f"p99_{name}_ms"] = 1e3 * float(np.percentile(values, 99))
    span_s = float(table.delivered_s.max() - table.sent_s.min())
    return figures | {
        "duration": span_s,
        "completed": len(several),
        "total_input_tokens": int(table.input_tokens.sum()),
        "request_throughput": len(several) / span_s,
        "output_throughput": float(table.output_tokens.sum()) / span_s,
    }


def _details(table: RequestTable) -> dict[str, Any]:
    return {
        "input_lens": table.input_tokens.tolist(),
        "output_lens": table.output_tokens.tolist(),
        "ttfts": table.ttft_s.tolist(),
        "itls": _gaps(table),
        "errors": [""] * len(table.output_tokens),
    }


def write_vllm(path: Path, table: RequestTable, *, rate: float | str, detailed: bool = True) -> Path:
    """``vllm bench serve --save-result --save-detailed``."""
    data: dict[str, Any] = {
        "endpoint_type": "openai", "backend": "openai", "model_id": "m", "tokenizer_id": "m",
        "num_prompts": len(table.output_tokens), "request_rate": rate, "max_concurrency": None, "failed": 0,
    } | _summary(table, "e2el")  # fmt: skip
    if detailed:
        data |= _details(table) | {"start_times": (table.sent_s + 1234.5).tolist()}
    path.write_text(json.dumps(data))
    return path


def write_sglang(path: Path, table: RequestTable, *, rate: float | str, detailed: bool = False) -> Path:
    """``sglang.bench_serving``, one line more."""
    data: dict[str, Any] = {
        "tag": None, "backend": "sglang-oai-chat", "dataset_name": "openai", "request_rate": rate,
        "max_concurrency": None, "sharegpt_output_len": None, "server_info": None,
    } | _summary(table, "e2e_latency")  # fmt: skip
    with path.open("a") as file:
        file.write(json.dumps(data | (_details(table) if detailed else {})) + "\n")
    return path


def write_guidellm(path: Path, table: RequestTable) -> Path:
    """``guidellm run --output kind=json``; requests as they ended, not as they were sent."""
    requests = [
        {
            "request_start_time": 1.7e9 + float(table.sent_s[i]),
            "time_to_first_token_ms": 1e3 * float(table.ttft_s[i]),
            "request_latency": float(table.e2e_s[i]),
            "prompt_tokens": int(table.input_tokens[i]),
            "output_tokens": int(table.output_tokens[i]),
        }
        for i in np.argsort(table.delivered_s)
    ]
    document = {
        "metadata": {"version": 2},
        "benchmarks": [{"requests": {"successful": requests, "errored": [], "incomplete": []}}],
    }
    path.write_text(json.dumps(document))
    return path


Writer = Callable[[Path, RequestTable], Path]
