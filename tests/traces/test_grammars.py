"""Grammars of a trace: read from rows, tables and logs, written, drawn, and kept by what changes a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hisearch.specs.workloads.workload import GeneratorSpec, TraceFileSpec
from hisearch.traces.adapters import RequestGrammars
from hisearch.traces.cache import read_compiled, write_compiled
from hisearch.traces.changes.merging import merged
from hisearch.traces.changes.selection import requests_at
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from hisearch.traces.importers import read_trace
from hisearch.traces.importers.grammars import grammar_of
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.trace import Trace
from tests.traces.test_thinking import BASE

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


def generated(structured: dict[str, Any] | None = None, **changes: Any) -> Trace:
    section = {} if structured is None else {"structured": structured}
    return generate_trace(GeneratorSpec.model_validate(BASE | section | changes), seed=1)


def names(trace: Trace | CompiledTrace) -> list[str | None]:
    if trace.grammars is None:
        return [None] * len(trace)
    return [None if k < 0 else trace.grammars.names[k] for k in trace.grammars.grammar.tolist()]


def seconds(grammars: RequestGrammars) -> list[float]:
    return grammars.compile_s.tolist()


def test_grammars_change_nothing_else() -> None:  # law L6
    plain, own = generated(), generated({"share": 0.4, "grammars": 8, "compile_s": 0.05})
    for column in ("arrival_s", "input_tokens", "output_tokens", "previous", "shared_tokens"):
        np.testing.assert_array_equal(getattr(own, column), getattr(plain, column))
    assert plain.grammars is None
    assert own.grammars is not None
    asked = own.grammars.grammar[own.grammars.grammar >= 0]
    assert len(asked) / len(own) == pytest.approx(0.4, abs=0.08)
    counts = np.bincount(asked)
    assert counts[0] > 2 * counts[-1]
    assert seconds(own.grammars) == [0.05] * len(own.grammars.names)


def test_a_class_has_grammars_of_its_own_or_those_of_all() -> None:
    classes = [
        {"name": "chat", "share": 0.5, "tenants": [0]},
        {"name": "tools", "share": 0.5, "tenants": [1], "structured": {"share": 1.0, "grammars": 2, "compile_s": 1.0}},
    ]
    trace = generated({"share": 0.5, "grammars": 3, "zipf": 0.0}, classes=classes)
    of = {tenant: {name for name, at in zip(names(trace), trace.tenant.tolist(), strict=True) if at == tenant}
          for tenant in (0, 1)}  # fmt: skip
    assert of[0] == {None, "grammar-1", "grammar-2", "grammar-3"}
    assert of[1] == {"grammar-4", "grammar-5"}
    assert trace.grammars is not None
    assert np.isnan(seconds(trace.grammars)[:3]).all()
    assert seconds(trace.grammars)[3:] == [1.0, 1.0]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_a_written_trace_has_the_same_grammars(tmp_path: Path, suffix: str) -> None:
    trace = generated({"share": 0.7, "grammars": 5, "compile_s": 0.25})
    path = tmp_path / f"t{suffix}"
    write_trace(trace, path)
    again = read_trace(path, TraceFileSpec(path=str(path)))
    assert names(again) == names(trace)
    assert again.grammars is not None
    assert set(seconds(again.grammars)) == {0.25}


def test_compiled_traces_keep_them(tmp_path: Path) -> None:
    trace = compile_trace(generated({"share": 0.7, "grammars": 5}), "t")
    write_compiled(tmp_path / "t.npz", trace, "key")
    assert names(read_compiled(tmp_path / "t.npz", "t")) == names(trace)
    assert trace.digest != compile_trace(generated(), "t").digest
    some = np.flatnonzero(trace.arrays.previous < 0)[::2]
    assert names(requests_at(trace, some)) == [names(trace)[k] for k in some.tolist()]


def test_merged_traces_share_no_grammar() -> None:
    structured, plain = generated({"share": 1.0, "compile_s": 0.1}), generated()
    both = merged([structured, plain, structured])
    assert set(names(both)) == {None, "1/grammar-1", "3/grammar-1"}


def test_a_grammar_has_one_time(tmp_path: Path) -> None:
    rows = [{"arrival_s": k, "input_tokens": 9, "output_tokens": 9, "grammar": "a", "compile_s": k} for k in (1.0, 2.0)]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in [{"format": "hisearch-trace", "version": 1}, *rows]))
    with pytest.raises(TraceError, match="expected 1, as grammar 'a' had before"):
        read_trace(path, TraceFileSpec(path=str(path)))


def test_a_column_of_a_table_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,in,out,schema\n0,10,5,invoice\n1,10,5,\n2,10,5,invoice\n")
    columns = {"arrival_s": "at", "input_tokens": "in", "output_tokens": "out", "grammar": "schema"}
    assert names(read_trace(path, TraceFileSpec(path=str(path), columns=columns))) == ["invoice", None, "invoice"]


def test_bodies_of_a_log_say_who_has_which(tmp_path: Path) -> None:
    bodies: list[dict[str, Any]] = [
        {"response_format": FORMAT},
        {"response_format": {"type": "text"}},
        {"response_format": json.loads(json.dumps(FORMAT))},
        {"tools": [TOOL], "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"structured_outputs": {"json": SCHEMA}},
        {"guided_regex": "[a-z]+"},
        {},
    ]
    usage = {"prompt_tokens": 20, "completion_tokens": 9}
    rows = [{"timestamp": 1.7e9 + k, "request": {"body": body}, "usage": usage} for k, body in enumerate(bodies)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    read = names(read_trace(path, TraceFileSpec(path=str(path))))
    assert read[0] == read[2]
    assert [read[k] for k in (1, 3, 7)] == [None] * 3
    kinds = [str(name).split("-")[0] for name in read if name is not None]
    assert kinds == ["json_schema", "json_schema", "tools", "structured_outputs", "guided_regex"]
    assert len(set(read) - {None}) == 4


def test_a_body_in_text_is_read_too() -> None:
    assert grammar_of({"response_format": json.dumps(FORMAT)}, ("",)) == grammar_of({"response_format": FORMAT}, ("",))
    assert grammar_of({"regex": "{[a-z"}, ("",)) is not None
