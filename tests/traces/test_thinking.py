"""Tokens that clients do not see: drawn, read and written, and what prompts of later turns share behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hisearch.simulate import simulate
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.workloads.workload import GeneratorSpec, TraceFileSpec
from hisearch.traces.cache import read_compiled, write_compiled
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from hisearch.traces.history import with_history
from hisearch.traces.importers import read_trace
from hisearch.traces.reading.columns import propose_columns
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.trace import Trace, make_trace
from tests.kernels.systems import plan

BASE: dict[str, Any] = {
    "requests": 300,
    "arrivals": {"rate_rps": 2.0},
    "first_input": {"distribution": "lognormal", "mean_log": 5.0, "sigma_log": 0.5},
    "output": {"distribution": "lognormal", "mean_log": 4.0, "sigma_log": 0.5},
    "sessions": {"continue_probability": [0.7], "max_turns": 6, "think": {"p50_s": 20.0, "p90_s": 60.0}},
    "shared_prefixes": [{"name": "a", "tokens": 64, "share": 0.5}],
}
TOKENS = {"distribution": "lognormal", "mean_log": 6.0, "sigma_log": 1.0}


def generated(share: float | None = None, history: str = "dropped", **changes: Any) -> Trace:
    thinking = {} if share is None else {"thinking": {"tokens": TOKENS, "share": share, "history": history}}
    return generate_trace(GeneratorSpec.model_validate(BASE | thinking | changes), seed=1)


def test_what_thinks_changes_neither_arrivals_nor_answers() -> None:  # law L6
    plain, thinking = generated(), generated(0.6)
    assert not plain.thinking_tokens.any()
    np.testing.assert_array_equal(thinking.arrival_s, plain.arrival_s)
    np.testing.assert_array_equal(thinking.previous, plain.previous)
    np.testing.assert_array_equal(thinking.output_tokens - thinking.thinking_tokens, plain.output_tokens)
    np.testing.assert_array_equal(thinking.input_tokens, plain.input_tokens)
    assert (thinking.thinking_tokens > 0).mean() == pytest.approx(0.6, abs=0.1)
    assert np.median(thinking.thinking_tokens[thinking.thinking_tokens > 0]) == pytest.approx(np.exp(6.0), rel=0.25)


@pytest.mark.parametrize("history", ["dropped", "kept"])
def test_prompts_of_later_turns(history: str) -> None:
    """They hold what was said before; behind thinking that is dropped, they share the earlier prompt alone."""
    trace = generated(0.5, history)
    later = np.flatnonzero(trace.previous >= 0)
    assert len(later) > 50
    kept = history == "kept"
    for k in later.tolist():
        before = int(trace.previous[k])
        thought = int(trace.thinking_tokens[before])
        said = int(trace.output_tokens[before]) - (0 if kept else thought)
        assert trace.input_tokens[k] > trace.input_tokens[before] + said
        assert trace.shares_with[k] == before
        shared = int(trace.input_tokens[before]) + (0 if thought and not kept else int(trace.output_tokens[before]))
        assert trace.shared_tokens[k] == shared


def test_a_first_turn_is_cut_to_the_window_and_keeps_a_visible_token() -> None:
    trace = generated(1.0, max_context_tokens=256)
    assert (trace.input_tokens + trace.output_tokens <= 256).all()
    assert (trace.thinking_tokens < trace.output_tokens).all()


def test_a_share_is_to_be_stated() -> None:
    with pytest.raises(ValidationError, match="share"):
        GeneratorSpec.model_validate(BASE | {"thinking": {"tokens": TOKENS}})


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_an_answer_behind_dropped_thinking_is_computed_anew(name: str) -> None:
    """Two turns of one session, far apart, on an idle engine with memory for all: hits end with the first prompt."""
    hits = {}
    for history in ("dropped", "kept"):
        spec = {
            "requests": 2,
            "arrivals": {"process": "closed_loop", "users": 1},
            "first_input": {"distribution": "constant", "scale_tokens": 100},
            "output": {"distribution": "constant", "scale_tokens": 40},
            "thinking": {
                "tokens": {"distribution": "constant", "scale_tokens": 60}, "share": 1.0, "history": history,
            },
            "sessions": {"continue_probability": [1.0], "max_turns": 2},
        }  # fmt: skip
        trace = compile_trace(generate_trace(GeneratorSpec.model_validate(spec)), history)
        engine = EngineSpec.model_validate({"name": name, "page_tokens": 1 if name == "sglang" else 4})
        table = simulate(plan(engine, 4096), trace).requests
        assert table.output_tokens.tolist() == [100, 100]
        hits[history] = (int(table.input_tokens[1]), int(table.hit_tokens[1]))
    assert hits["dropped"] == (240, 100)
    # vLLM has whole pages of 4 tokens, without the output's last token; SGLang has decoded once more when it ends.
    assert hits["kept"] == (300, 200 if name == "sglang" else 196)


def test_history_of_a_log_is_taken_to_be_dropped() -> None:
    columns = {"arrival_s": [0, 10, 20], "input_tokens": [100, 200, 400], "output_tokens": [80, 30, 5]}
    trace = with_history(make_trace(**columns, previous=[-1, 0, 1], thinking_tokens=[60, 0, 0]))  # type: ignore[arg-type]
    assert trace.shared_tokens.tolist() == [0, 100, 230]
    assert "thinking is taken to be dropped" in trace.warnings[-1]


def read(path: Path, **options: Any) -> Trace:
    return read_trace(path, TraceFileSpec(path=str(path), **options))


def written(tmp_path: Path, name: str, rows: list[Any]) -> Path:
    path = tmp_path / name
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_tables(tmp_path: Path) -> None:
    header = "arrival_s,input_tokens,output_tokens,thinking_tokens"
    trace = read(written(tmp_path, "own.csv", [header, "1,10,30,20", "0,11,31,", "2,12,32,0"]))
    assert trace.thinking_tokens.tolist() == [0, 20, 0]
    columns = {"arrival_s": "ts", "input_tokens": "in", "output_tokens": "out", "thinking_tokens": "reasoning"}
    mapped = read(written(tmp_path, "other.csv", ["ts,in,out,reasoning", "0,10,30,30"]), columns=columns)
    assert mapped.thinking_tokens.tolist() == [30]
    sample = {"ts": 1.0, "prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details.reasoning_tokens": 2}
    assert propose_columns(sample)["thinking_tokens"] == "completion_tokens_details.reasoning_tokens"
    with pytest.raises(TraceError, match=r"own\.csv:2: thinking_tokens: expected a whole number up to 30, got 31"):
        read(written(tmp_path, "own.csv", [header, "0,10,30,31"]))


def test_own_form_refuses_more_thinking_than_output(tmp_path: Path) -> None:
    row = {"id": "a", "arrival_s": 0, "input_tokens": 5, "output_tokens": 3, "thinking_tokens": 4}
    header = {"format": "hisearch-trace", "version": 1}
    with pytest.raises(TraceError, match="thinking_tokens: expected a whole number up to 3, got 4"):
        read(written(tmp_path, "t.jsonl", [header, row]))


def usage(**details: Any) -> dict[str, Any]:
    return {"prompt_tokens": 9, "completion_tokens": 50, **details}


CALL = {"startTime": "2026-08-01T09:00:00", "endTime": "2026-08-01T09:00:04"}
SPAN = {
    "context": {"trace_id": "t", "span_id": "s"}, "start_time": "2026-08-01T09:00:00Z",
    "end_time": "2026-08-01T09:00:04Z",
}  # fmt: skip
COUNTS = {"gen_ai.usage.input_tokens": 9, "gen_ai.usage.output_tokens": 50}
RUN = {"id": "r", "run_type": "llm", "start_time": "2026-08-01T09:00:00", "end_time": "2026-08-01T09:00:04"}
OUTPUT = {"usage_metadata": {"input_tokens": 9, "output_tokens": 50, "output_token_details": {"reasoning": 40}}}
AIPERF = {
    "metadata": {"request_start_ns": 10**18}, "error": None,
    "metrics": {
        "input_sequence_length": {"value": 9, "unit": "tokens"},
        "time_to_first_token": {"value": 100, "unit": "ms"}, "request_latency": {"value": 900, "unit": "ms"},
        "output_sequence_length": {"value": 50, "unit": "tokens"},
        "reasoning_token_count": {"value": 40, "unit": "tokens"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [
        {"created": 1, "usage": usage(completion_tokens_details={"reasoning_tokens": 40})},
        {"created": 1, "usage": usage(reasoning_tokens=40)},
        {"timestamp": 1.5, "response": {"usage": {"input_tokens": 9, "output_tokens": 50,
                                                  "output_tokens_details": {"reasoning_tokens": 40}}}},
        CALL | {"prompt_tokens": 9, "completion_tokens": 50,
                "metadata": {"usage_object": {"completion_tokens_details": {"reasoning_tokens": 40}}}},
        SPAN | {"attributes": COUNTS | {"gen_ai.usage.reasoning.output_tokens": 40}},
        RUN | {"outputs": OUTPUT},
        AIPERF,
    ],
    ids=["openai", "sglang", "responses", "litellm", "otel_genai", "langsmith", "aiperf"],
)  # fmt: skip
def test_logs_that_count_reasoning(tmp_path: Path, row: dict[str, Any]) -> None:
    trace = read(written(tmp_path, "log.jsonl", [row]))
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == ([9], [50])
    assert trace.thinking_tokens.tolist() == [40]


def test_messages_of_a_later_call_share_the_prompt_before_the_thinking(tmp_path: Path) -> None:
    def span(second: int, messages: list[str], answer: str, thinking: int) -> dict[str, Any]:
        said = [{"role": "user", "content": message} for message in messages]
        counts = {"gen_ai.usage.input_tokens": 10 * len(messages), "gen_ai.usage.output_tokens": 50}
        return {
            "context": {"trace_id": "t", "span_id": f"{second}"}, "start_time": f"2026-08-01T09:00:{second:02}Z",
            "end_time": f"2026-08-01T09:00:{second + 1:02}Z",
            "attributes": counts | {"gen_ai.usage.reasoning.output_tokens": thinking, "gen_ai.input.messages": said,
                                    "gen_ai.output.messages": [{"role": "user", "content": answer}]},
        }  # fmt: skip

    for thinking, shared in ((40, 10), (0, 20)):
        spans = [span(0, ["question"], "replying", thinking), span(5, ["question", "replying", "further!"], "ok", 0)]
        assert read(written(tmp_path, "spans.jsonl", spans)).shared_tokens.tolist() == [0, shared]


def test_traces_without_it_keep_their_digest_and_those_with_it_have_their_own(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"arrival_s": [0.0, 1.0], "input_tokens": [5, 6], "output_tokens": [3, 4]}
    plain, thinking = (compile_trace(make_trace(**columns, thinking_tokens=t), "t") for t in ([0, 0], [2, 0]))
    # Of the version before there was thinking.
    assert plain.digest == "657e178253cc1fc3d7c6efb62a6660181618f085f765bffb4ab1e88a17684c18"
    assert thinking.digest != plain.digest
    write_compiled(tmp_path / "t.npz", thinking, "key")
    assert read_compiled(tmp_path / "t.npz", "t", "key").arrays.thinking_tokens.tolist() == [2, 0]
    write_compiled(tmp_path / "old.npz", plain, "key")
    with np.load(tmp_path / "old.npz") as stored:
        kept = {name: stored[name] for name in stored if name != "thinking_tokens"}
    np.savez(tmp_path / "old.npz", **kept)
    assert read_compiled(tmp_path / "old.npz", "t", "key").arrays.thinking_tokens.tolist() == [0, 0]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=6))
@settings(deadline=None)
def test_thinking_is_part_of_the_output(rows: list[tuple[int, int]]) -> None:
    outputs, thinking = zip(*rows, strict=True)
    columns: dict[str, Any] = {"arrival_s": np.zeros(len(rows)), "input_tokens": outputs, "output_tokens": outputs}
    if all(t <= o for o, t in rows):
        assert make_trace(**columns, thinking_tokens=thinking).thinking_tokens.tolist() == list(thinking)
    else:
        with pytest.raises(ValueError, match="thinking_tokens: at least 0, at most output_tokens"):
            make_trace(**columns, thinking_tokens=thinking)
