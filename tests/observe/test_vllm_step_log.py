"""The step log inside vLLM's own schedulers: it changes no decision, and says what was decided."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hisearch.calibrate.step_log import read_step_logs
from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.importers import read_trace
from tests.engines.environments import ENGINES, ROOT

_SCRIPT = Path(__file__).with_name("log_a_case.py")
SEED = 3


class Logged(NamedTuple):
    """A case recorded with the log (``logged``) and without, and the log's folder; ``said``: on standard error."""

    plain: dict[str, Any]
    logged: dict[str, Any]
    block_tokens: int
    folder: Path
    said: str

    @property
    def steps(self) -> list[dict[str, Any]]:
        """Lines of the step log, oldest first."""
        paths = sorted(self.folder.glob("steps-*.jsonl"), key=lambda path: path.name.count("."), reverse=True)
        return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def log_a_case(title: str, folder: Path, *words: str, **environment: str) -> Logged:
    """Run the script with the engine's Python, where there is one."""
    engine = ENGINES[title]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {title}; run `make test-engines`, or set {engine.variable} to its Python")
    variables = os.environ | {"PYTHONPATH": str(ROOT), "HISEARCH_STEP_LOG": str(folder)} | environment
    command = [str(engine.python()), str(_SCRIPT), str(SEED), *words]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return Logged(**json.loads(done.stdout), folder=folder, said=done.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("title", ["vllm-0.19.1", "vllm-0.33.0"])
def test_the_log_says_what_was_decided(title: str, mode: str, tmp_path: Path) -> None:
    case = log_a_case(title, tmp_path, mode)
    assert case.logged == case.plain
    expected = [sorted((new, cached) for _, cached, new in step["batch"]) for step in case.plain["steps"]]
    shares = [sorted((r["new_tokens"], r["cached_tokens"]) for r in step["requests"]) for step in case.steps]
    assert shares == expected
    assert [step["preempted"] for step in case.steps] == [len(step["preempted"]) for step in case.plain["steps"]]
    for step in case.steps:
        new, cached = (sum(request[key] for request in step["requests"]) for key in ("new_tokens", "cached_tokens"))
        assert (step["prompt_tokens"] + step["decode_tokens"], step["context_tokens"]) == (new, new + cached)
        assert step["hit_tokens"] <= cached
    starts = [step["start_s"] for step in case.steps]
    assert starts == sorted(starts)

    (steps_file,) = tmp_path.glob("steps-*.jsonl")
    log = read_step_logs([steps_file])
    assert len(log.latency_s) == len(expected)
    assert 0 < log.decode.sum() < len(log.decode)

    (trace_file,) = tmp_path.glob("trace-*.jsonl")
    trace = read_trace(trace_file, TraceFileSpec(path=str(trace_file)))
    rows = case.plain["requests"]
    lengths = [(row["input_tokens"], row["output_tokens"]) for row in rows]
    assert list(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == lengths
    arrivals = np.array([row["arrival_s"] for row in rows])
    assert trace.arrival_s == pytest.approx(arrivals - arrivals[0], abs=2e-6)
    # Requests share as many blocks in the trace as they do in the case.
    named = [json.loads(line) for line in trace_file.read_text().splitlines()[1:]]
    for row, line in zip(rows, named, strict=True):
        assert line["known_tokens"] == len(line["block_ids"]) * case.block_tokens
        assert len(line["block_ids"]) >= row["input_tokens"] // case.block_tokens
    theirs = {name for row in rows for name in row["block_ids"][: row["input_tokens"] // case.block_tokens]}
    ours = {
        name
        for row, line in zip(rows, named, strict=True)
        for name in line["block_ids"][: row["input_tokens"] // case.block_tokens]
    }
    assert len(ours) == len(theirs)


@pytest.mark.slow
def test_a_broken_log_is_switched_off_and_the_server_goes_on(tmp_path: Path) -> None:
    case = log_a_case("vllm-0.33.0", tmp_path, "sync", "broken", VLLM_LOGGING_LEVEL="ERROR")
    assert case.logged == case.plain
    assert case.said.count("hisearch step log: switched off") == 1
    assert len(case.steps) <= 20


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    case = log_a_case("vllm-0.19.1", tmp_path / "file" / "below", "sync")
    assert case.logged == case.plain


@pytest.mark.slow
def test_the_newest_steps_are_kept_within_the_limit(tmp_path: Path) -> None:
    case = log_a_case("vllm-0.33.0", tmp_path, "sync", HISEARCH_STEP_LOG_MIB="0.2")
    assert sum(path.stat().st_size for path in tmp_path.glob("steps-*")) <= 0.2 * 2**20
    expected = [sorted((new, cached) for _, cached, new in step["batch"]) for step in case.plain["steps"]]
    shares = [sorted((r["new_tokens"], r["cached_tokens"]) for r in step["requests"]) for step in case.steps]
    assert 0 < len(shares) < len(expected)
    assert shares == expected[-len(shares) :]
