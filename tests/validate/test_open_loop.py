"""Open-loop runs against their measurement: the requests of a run, figures, folders, and what is said of bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.simulate import simulate
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.compiled import CompiledTrace
from hisearch.validate.open_loop import (
    GAP_S,
    OVERLOAD,
    TOKENS_PER_NOMINAL,
    Figure,
    OpenLoopScore,
    _workload,
    figures,
    pool_of,
    score_folders,
    trace_of,
    worker_of,
)
from hisearch.validate.open_loop_file import METRICS, WHOLE, OpenLoopFailure, OpenLoopFileError, OpenLoopRun
from hisearch.validate.open_loop_report import errors_of, validate_open_loop
from refit.host_fit.cases import read_folder
from tests.cli.conftest import Hisearch, hisearch
from tests.reference.recorded import shared_directory

__all__ = ["hisearch"]

RUN: dict[str, Any] = {
    "id": "a", "set": "s", "model": "llama-3.1-8b", "accelerator": "h100-sxm", "max_num_batched_tokens": 2048,
    "max_num_seqs": 32, "gpu_memory_utilization": 0.9, "workload": "chat", "stages": [[4, 5], [8, 2.5]], "groups": 2,
    "per_group": 3, "system_tokens": 64, "question_tokens": 200, "output_tokens": 12, "measured_kv_tokens": 450000,
}  # fmt: skip
#: Of RUN: by stage, ms.
MEASURED = {(WHOLE, "e2e_mean"): 100.0, (WHOLE, "ttft_mean"): 20.0, (0, "ttft_p90"): 40.0, (1, "itl_mean"): 8.0}


def write_folder(folder: Path, *runs: Any, rows: list[str] | None = None) -> Path:
    """A folder of runs, each RUN with or without changes; ``rows`` of measured.csv, those of RUN where None."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = [RUN | run if isinstance(run, dict) else run for run in runs or ({},)]
    (folder / "runs.json").write_text(json.dumps(documents))
    default_rows = [f"s,a,{stage},{metric},{ms}" for (stage, metric), ms in MEASURED.items()]
    (folder / "measured.csv").write_text(
        "\n".join(["set,id,stage,metric,ms", *(default_rows if rows is None else rows)]) + "\n"
    )
    return folder


def run_of(**changes: Any) -> OpenLoopRun:
    return OpenLoopRun.model_validate(RUN | changes)


def scored(*folders: Path) -> list[OpenLoopScore | OpenLoopFailure]:
    return list(score_folders(folders, Catalogue()))


@st.composite
def runs(draw: st.DrawFn) -> OpenLoopRun:
    seconds = st.tuples(st.floats(0.5, 20.0), st.floats(2.0, 30.0))
    small = st.integers(1, 4)
    return run_of(
        stages=draw(st.lists(seconds, min_size=1, max_size=3)),
        groups=draw(small),
        per_group=draw(small),
        system_tokens=draw(st.integers(0, 2000)),
        question_tokens=draw(st.integers(1, 500)),
        output_tokens=draw(st.integers(1, 300)),
    )


def path_to(trace: CompiledTrace, request: int) -> list[int]:
    """Nodes from the root to the end of a prompt."""
    nodes, node = [], int(trace.arrays.prompt_node[request])
    while node >= 0:
        nodes.append(node)
        node = int(trace.arrays.parent[node])
    return nodes[::-1]


def shared_tokens(trace: CompiledTrace, first: int, second: int) -> int:
    """Tokens with which two prompts begin alike."""
    both = [a for a, b in zip(path_to(trace, first), path_to(trace, second), strict=False) if a == b]
    return int(trace.arrays.end_tokens[both[-1]])


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_arrivals_fill_every_stage(run: OpenLoopRun) -> None:
    trace, stage_of = trace_of(run)
    start = 0.0
    for stage, (rate, duration_s) in enumerate(run.stages):
        arrivals = trace.arrays.arrival_s[stage_of == stage]
        assert len(arrivals) == int(rate * duration_s)
        assert (np.diff(arrivals) >= 0).all()
        assert arrivals[0] > start
        assert arrivals[-1] == pytest.approx(start + duration_s, rel=1e-12)
        start += duration_s + GAP_S
    assert len(trace) == len(stage_of)
    assert (np.diff(stage_of) >= 0).all()
    assert (trace.arrays.previous == -1).all()


@settings(max_examples=60, deadline=None)
@given(run=runs())
def test_prompts_are_asked_for_in_turn(run: OpenLoopRun) -> None:
    trace, stage_of = trace_of(run)
    prompts = run.groups * run.per_group
    system = round(run.system_tokens * TOKENS_PER_NOMINAL)
    lengths = trace.arrays.input_tokens
    assert (lengths > system).all()
    assert (trace.arrays.output_tokens == run.output_tokens).all()
    first_of_stage = np.searchsorted(stage_of, np.arange(len(run.stages)))
    turn = (np.arange(len(trace)) - first_of_stage[stage_of]) % prompts
    earlier: dict[int, int] = {}
    group_sizes: dict[int, int] = {}
    for request, which in enumerate(turn.tolist()):
        if which in earlier:  # a later round, or a later stage: all of the prompt was there before
            first = earlier[which]
            assert lengths[request] == lengths[first]
            assert shared_tokens(trace, request, first) == lengths[request]
            continue
        alike = [first for first in earlier.values() if system and shared_tokens(trace, request, first)]
        assert all(shared_tokens(trace, request, first) == system for first in alike)
        earlier[which] = request
        group = min([request, *alike])
        group_sizes[group] = group_sizes.get(group, 0) + 1
    assert len(earlier) <= prompts
    if system:
        assert len(group_sizes) <= run.groups
        assert max(group_sizes.values()) <= run.per_group
    if system and len(earlier) == prompts:
        assert list(group_sizes.values()) == [run.per_group] * run.groups


@settings(max_examples=20, deadline=None)
@given(run=runs(), seed=st.integers(0, 5))
def test_a_run_is_drawn_alike_every_time(run: OpenLoopRun, seed: int) -> None:
    once, stages = trace_of(run, seed)
    assert trace_of(run.model_copy(update={"id": "b", "accelerator": "a100-80gb"}), seed)[0] is once
    _workload.cache_clear()
    again, others = trace_of(run, seed)
    assert again is not once
    assert again.digest == once.digest
    assert np.array_equal(stages, others)
    if np.bincount(stages).max() > 1:  # a single arrival is at the end of its stage, whatever the seed
        assert trace_of(run, seed + 1)[0].digest != once.digest


def slow_figures(requests: list[tuple[float, float, int]]) -> dict[str, float]:
    """Of (TTFT ms, E2E ms, output tokens), by the book."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    def percentile(values: list[float], share: float) -> float:
        ranked, place = sorted(values), share * (len(values) - 1)
        low = int(place)
        high = min(low + 1, len(ranked) - 1)
        return ranked[low] + (place - low) * (ranked[high] - ranked[low])

    ttft, e2e = [row[0] for row in requests], [row[1] for row in requests]
    by_metric = {"itl_mean": (mean(e2e) - mean(ttft)) / mean([float(max(row[2] - 1, 1)) for row in requests])}
    for name, values in (("e2e", e2e), ("ttft", ttft)):
        by_metric |= {f"{name}_mean": mean(values), f"{name}_p90": percentile(values, 0.9)}
        by_metric |= {f"{name}_p99": percentile(values, 0.99)}
    return by_metric


def worker(run: OpenLoopRun, folder: Path) -> Any:
    catalogue = Catalogue()
    return worker_of(run, folder, catalogue, "auto", catalogue.get("LatencyProfile", "auto").spec)


def test_errors_of_a_folder_are_those_of_its_figures(tmp_path: Path) -> None:
    (score,) = scored(write_folder(tmp_path / "runs"))
    assert isinstance(score, OpenLoopScore)
    run = score.run
    trace, stage_of = trace_of(run)
    table = simulate(worker(run, tmp_path), trace).requests
    assert len(trace) == score.requests == 40
    assert (score.unfinished, score.overloaded, score.measured) == (0, False, True)
    assert score.predicted_kv_tokens == worker(run, tmp_path).kv_capacity_tokens
    rows = list(zip(1e3 * table.ttft_s, 1e3 * table.e2e_s, table.output_tokens.tolist(), strict=True))
    slow = {WHOLE: slow_figures(rows)}
    slow |= {s: slow_figures([row for row, of in zip(rows, stage_of, strict=True) if of == s]) for s in (0, 1)}
    scored_figures = {(WHOLE, name): figure for name, figure in score.metrics.items()} | score.stages
    assert set(scored_figures) == set(MEASURED)
    for (stage, name), figure in scored_figures.items():
        assert figure.measured_ms == MEASURED[stage, name]
        assert figure.simulated_ms == pytest.approx(slow[stage][name], rel=1e-9)
        assert figure.error == pytest.approx(slow[stage][name] / MEASURED[stage, name] - 1, abs=1e-9)
    run_figures = figures(table, table.finished)
    assert tuple(run_figures) == METRICS
    assert run_figures == pytest.approx(slow[WHOLE], rel=1e-9)
    assert all(np.isnan(value) for value in figures(table, np.zeros(len(trace), dtype=bool)).values())
    # The client's: with the front end, later than at the scheduler.
    assert (table.ttft_s > table.engine_ttft_s).all()


def test_summary_is_taken_over_the_runs_that_have_a_metric(tmp_path: Path) -> None:
    def score(**errors: float) -> OpenLoopScore:
        metrics = {name: Figure(100.0, 100.0 * (1 + error)) for name, error in errors.items()}
        return OpenLoopScore(run_of(), metrics, {}, 1, 0, 40, "roofline")

    scores = [score(e2e_mean=0.1, ttft_mean=-0.5), score(e2e_mean=-0.2), score(e2e_mean=0.6), score()]
    errors_by_metric = errors_of(scores)
    assert list(errors_by_metric) == ["e2e_mean", "ttft_mean"]
    e2e = errors_by_metric["e2e_mean"]
    assert e2e.runs == 3
    assert [e2e.median_ape, e2e.mape, e2e.bias] == pytest.approx([0.2, 0.3, 0.5 / 3])
    assert errors_by_metric["ttft_mean"].runs == 1
    assert errors_by_metric["ttft_mean"].bias == pytest.approx(-0.5)
    assert [run_score.measured for run_score in scores] == [True, True, True, False]
    assert [score(ttft_mean=ratio - 1).overloaded for ratio in (OVERLOAD - 0.1, OVERLOAD + 0.1)] == [False, True]


def test_the_pool_states_version_settings_and_offload() -> None:
    pool = pool_of(run_of(engine_version="0.15.1", tensor_parallel=2, expert_parallel=2, offload_gib_per_rank=8))
    engine = pool.engine
    assert (engine.name, engine.version) == ("vllm", "0.15.1")
    assert (engine.chunk_tokens, engine.max_running_requests, engine.memory_fraction) == (2048, 32, 0.9)
    assert (pool.tensor_parallel, pool.expert_parallel) == (2, 2)
    (tier,) = pool.tiers
    assert (tier.medium, tier.gib) == ("ddr5", 16.0)
    assert pool_of(run_of()).tiers == []


def test_models_of_the_folder_come_before_the_catalogue(tmp_path: Path) -> None:
    document = Catalogue().locate("Model", "qwen3-8b").read_text().replace("name: qwen3-8b", "name: my-model")
    folder = write_folder(tmp_path / "runs", {"model": "my-model"})
    (folder / "models").mkdir()
    (folder / "models" / "my-model.yaml").write_text(document)
    (score,) = scored(folder)
    assert isinstance(score, OpenLoopScore)
    (other,) = scored(write_folder(tmp_path / "others", {"model": "qwen3-8b"}))
    assert isinstance(other, OpenLoopScore)
    assert score.metrics == other.metrics


BAD_RUNS: list[tuple[Any, str]] = [
    ({"stagez": 1}, "run 0: stagez: unknown key; did you mean 'stages'?"),
    ({"stages": [[-4, 5]]}, "run 0: stages.0.0: must be greater than 0, got -4"),
    ({"stages": [[4, 0.1]]}, "run 0: stages: stage 0: 4 requests/s for 0.1 s are less than one request"),
    ({"stages": []}, "run 0: stages: needs 1 or more entries, got 0"),
    ({"groups": 2.5}, "run 0: groups: expected an integer, got 2.5"),
    ({"max_num_seqs": "32"}, "run 0: max_num_seqs: expected an integer, got text '32'"),
    ({"gpu_memory_utilization": 1.5}, "run 0: gpu_memory_utilization: must be at most 1, got 1.5"),
    ({"engine": "vlm"}, "run 0: engine: expected 'vllm', 'sglang' or 'trtllm'; got text 'vlm'"),
    ({"id": 5}, "run 0: id: expected text, got the number 5; write it in quotes"),
    ({"stages": [[4, 5]]}, "run 0: stages: measured.csv has a stage 1, but the run ends with 0"),
    (3, "run 0: expected an object, got 3"),
    ({"model": "nope"}, "run 0: model: no Model named 'nope'"),
    ({"accelerator": "h10"}, "run 0: accelerator: no Accelerator named 'h10'; did you mean"),
    ({"model": "llama-3.1-70b", "accelerator": "l40s"}, "run 0: meta-llama/Llama-3.1-70B-Instruct"),
    ({"tensor_parallel": 3}, "run 0: meta-llama/Llama-3.1-8B-Instruct: tensor_parallel 3 does not divide"),
]


@pytest.mark.parametrize(("change", "words"), BAD_RUNS)
def test_a_bad_run_is_named_and_the_others_done(change: Any, words: str, tmp_path: Path) -> None:
    """Laws L8, L9."""
    folder = write_folder(tmp_path / "runs", change, {"id": "good"})
    bad, good = scored(folder)
    assert isinstance(bad, OpenLoopFailure)
    assert f"{folder / 'runs.json'}: {words}" in bad.reason
    assert (bad.run, bad.folder) == (0, str(folder))
    assert isinstance(good, OpenLoopScore)
    assert good.run.id == "good"


def test_what_does_not_fit_says_so(tmp_path: Path) -> None:
    (bad,) = scored(write_folder(tmp_path, {"model": "llama-3.1-70b", "accelerator": "l40s"}))
    assert isinstance(bad, OpenLoopFailure)
    assert "does not fit" in bad.reason


def test_a_missing_key_and_a_second_run_of_that_name_are_refused(tmp_path: Path) -> None:
    short = {key: value for key, value in RUN.items() if key != "groups"}
    folder = write_folder(tmp_path)
    (folder / "runs.json").write_text(json.dumps([short, RUN, RUN]))
    bad, good, twice = scored(folder)
    assert isinstance(bad, OpenLoopFailure)
    assert bad.reason.endswith("run 0: groups: required, and missing")
    assert isinstance(good, OpenLoopScore)
    assert isinstance(twice, OpenLoopFailure)
    assert twice.reason.endswith("run 2: id: s/a is a run before this one")
    with pytest.raises(OpenLoopFileError, match="run 0: groups: required, and missing"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "runs.json: No such file or directory"),
        ("[\n{,", "runs.json:2: expected a JSON list of runs: "),
        ("{}", "runs.json: expected a JSON list of runs, got a section"),
        ("[]", "runs.json: expected a JSON list of runs, got an empty list"),
    ],
)
def test_runs_that_are_no_list_fail_their_folder(text: str | None, words: str, tmp_path: Path) -> None:
    folder, good = write_folder(tmp_path / "bad"), write_folder(tmp_path / "good")
    (folder / "runs.json").unlink()
    if text is not None:
        (folder / "runs.json").write_text(text)
    bad, score = scored(folder, good)
    assert isinstance(bad, OpenLoopFailure)
    assert bad.run is None
    assert f"{folder}/{words}" in bad.reason
    assert isinstance(score, OpenLoopScore)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("s,a,x,e2e_mean,1", "stage: expected an integer, got text 'x'"),
        ("s,a,-2,e2e_mean,1", "stage: must be at least -1"),
        ("s,a,0,e2e_p95,1", "metric: no metric text 'e2e_p95'; did you mean"),
        ("s,a,0,e2e_mean,fast", "ms: expected a number, got text 'fast'"),
        ("s,a,0,e2e_mean,-3", "ms: must be greater than 0"),
        ("s,a,0,e2e_mean,nan", "ms: expected a finite number"),
        ("s,a,0,e2e_mean", "ms: required, and missing"),
        ("s,,0,e2e_mean,1", "id: required, and missing"),
        ("s,a,-1,e2e_mean,1", "e2e_mean of run a, stage -1, was there before"),
    ],
)
def test_bad_cells_are_named_with_their_line(row: str, words: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, rows=["s,a,-1,e2e_mean,100", row])
    with pytest.raises(OpenLoopFileError) as caught:
        read_folder(folder)
    assert str(caught.value).startswith(f"{folder / 'measured.csv'}:3: {words}")


def test_columns_are_checked(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "measured.csv").write_text("set,id,metric,ms\n")
    with pytest.raises(OpenLoopFileError, match=r"measured.csv:1: expected columns .*; got set, id, metric, ms"):
        read_folder(folder)
    (folder / "measured.csv").write_text("run,stage,metric,ms\na,-1,e2e_mean,5\n")
    assert read_folder(folder)[1] == {("", "a", WHOLE, "e2e_mean"): 5.0}
    (folder / "measured.csv").unlink()
    with pytest.raises(OpenLoopFileError, match=r"measured.csv: No such file"):
        read_folder(folder)


def test_json(hisearch: Hisearch, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "runs", {}, {"id": "unmeasured"})
    ran = hisearch("validate", "open-loop", folder, "--json")
    assert ran.code == 0
    assert "run 1 of 2: s/a, llama-3.1-8b on h100-sxm" in ran.err
    document = ran.json
    row, other = document["runs"]
    assert set(row) == {
        "id", "set", "model", "accelerator", "tensor_parallel", "workload", "profile", "metrics", "stages",
        "kv_capacity_tokens", "measured_kv_tokens", "requests", "unfinished", "overloaded",
    }  # fmt: skip
    assert set(row["metrics"]) == {"e2e_mean", "ttft_mean"}
    e2e = row["metrics"]["e2e_mean"]
    assert e2e["error"] == pytest.approx(e2e["simulated_ms"] / e2e["measured_ms"] - 1)
    assert [set(stage["metrics"]) for stage in row["stages"]] == [{"ttft_p90"}, {"itl_mean"}]
    assert (row["stages"][1]["requests_per_s"], row["stages"][1]["duration_s"]) == (8, 2.5)
    assert (other["metrics"], document["unmeasured"]) == ({}, 1)
    assert set(document["summary"]) == {"e2e_mean", "ttft_mean"}
    assert document["summary"]["e2e_mean"] == {
        "runs": 1, "median_ape": abs(e2e["error"]), "mape": abs(e2e["error"]), "bias": e2e["error"],
    }  # fmt: skip
    assert document["groups"]["accelerator"] == {"h100-sxm": document["summary"]}
    assert set(document["groups"]) == {"accelerator", "model", "workload"}
    assert (document["ok"], document["failed"], document["unfinished"], document["overloaded"]) == (True, [], 0, 0)


def test_tables(hisearch: Hisearch, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "runs", {"groups": 0, "id": "bad"}, {}, {"id": "unmeasured"})
    ran = hisearch("validate", "open-loop", folder, "--quiet", "--profile", "roofline")
    assert ran.code == 1
    assert ran.err == f"hisearch: error: {folder / 'runs.json'}: run 0: groups: must be at least 1, got 0\n"
    for words in (
        "2 runs simulated", "s/a", "Over all runs", "By accelerator", "By model", "By workload", "mean abs.",
        "450,000", "0 of 80 requests", "Without any measured metric: 1 run: s/unmeasured.", "Not simulated", "s/bad",
    ):  # fmt: skip
        assert words in ran.out, words
    assert max(map(len, ran.out.splitlines())) <= 120


def test_an_unknown_profile_is_an_error(hisearch: Hisearch, tmp_path: Path) -> None:
    ran = hisearch("validate", "open-loop", write_folder(tmp_path / "runs"), "--profile", "nope")
    assert (ran.code, ran.out) == (1, "")
    assert "no LatencyProfile named 'nope'" in ran.err


def test_measured_runs_are_all_simulated_and_none_overloads() -> None:
    shared = shared_directory()
    folder = None if shared is None else shared / "validation" / "vllm_open_loop"
    if folder is None or not folder.is_dir():
        pytest.skip("no measured open-loop runs: $HISEARCH_SHARED/validation/vllm_open_loop is absent")
    report = validate_open_loop([folder])
    assert report.failed == ()
    assert len(report.scores) == 28
    assert (report.overloaded, report.unmeasured) == ((), ())
    assert sum(score.unfinished for score in report.scores) == 0
    assert report.summary["e2e_mean"].runs == 28
