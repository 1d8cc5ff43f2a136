"""Traces that name a model per request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hisearch.specs.workloads.workload import TraceFileSpec
from hisearch.traces.cache import load_cached, store_cached
from hisearch.traces.changes.bootstrap import resample, session_table
from hisearch.traces.changes.merging import asking_for, merged
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.changes.selection import head
from hisearch.traces.compiler import compile_trace, scale_load
from hisearch.traces.importers import read_trace
from hisearch.traces.models import RequestModels
from hisearch.traces.reading.canonical import write_trace
from hisearch.traces.reading.errors import TraceError
from hisearch.traces.trace import Trace, make_trace

HEADER = {"format": "hisearch-trace", "version": 1, "block_tokens": 4}
ROW = {"arrival_s": 1.0, "input_tokens": 8, "output_tokens": 3}


def read(path: Path, **options: object) -> Trace:
    return read_trace(path, TraceFileSpec.model_validate({"path": str(path)} | options))


def names(trace: Trace) -> list[str]:
    assert trace.models is not None
    return [trace.models.names[k] for k in trace.models.model.tolist()]


def rows(*models: str) -> list[dict[str, object]]:
    return [HEADER, *(ROW | {"id": str(k), "model": model, "block_ids": [1, 2]} for k, model in enumerate(models))]


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".parquet"])
def test_models_are_read_and_written(write, tmp_path, ending):
    trace = read(write("t.jsonl", rows("b", "a", "b")))
    assert names(trace) == ["b", "a", "b"]
    write_trace(trace, tmp_path / f"again{ending}")
    assert names(read(tmp_path / f"again{ending}")) == ["b", "a", "b"]


def test_blocks_of_different_models_are_different(write):
    """The same block ids, which mean the same tokens for one model alone."""
    trace = read(write("t.jsonl", rows("b", "a", "b", "a")))
    assert trace.shares_with.tolist() == [-1, -1, 0, 1]
    arrays = compile_trace(trace, "t").arrays
    assert arrays.prompt_node[0] == arrays.prompt_node[2] != arrays.prompt_node[1] == arrays.prompt_node[3]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"model": None}, "model: expected in all rows, or in none"),
        (
            {"model": "b", "shares_with": "0", "shared_tokens": 4},
            "shares_with: expected a request of the same model, 'b'",
        ),
        ({"model": 1.5}, "model: expected text or a whole number"),
    ],
)
def test_refused_rows(write, row, message):
    first = ROW | {"id": "0", "model": "a"}
    row = {key: value for key, value in (ROW | {"id": "1"} | row).items() if value is not None}
    with pytest.raises(TraceError, match=r"t\.jsonl:3") as caught:
        read(write("t.jsonl", [HEADER, first, row]))
    assert message in str(caught.value)


def test_a_table_names_models_only_where_it_is_mapped(write):
    path = write("t.csv", "arrival_s,input_tokens,output_tokens,model\n0,8,3,gpt\n1,8,3,other\n")
    assert read(path).models is None
    columns = {name: name for name in ("arrival_s", "input_tokens", "output_tokens", "model")}
    assert names(read(path, columns=columns)) == ["gpt", "other"]


def test_nothing_loses_sight_of_what_requests_ask_for(write, monkeypatch, tmp_path):
    """Order, head, load, another draw, the cache on disk: each request keeps its model."""
    count = 60
    arrival = np.linspace(0.0, 30.0, count)[::-1]
    models = RequestModels(("a", "b", "c"), (np.arange(count) % 3).astype(np.int32))
    trace = make_trace(
        arrival_s=arrival, input_tokens=10 + np.arange(count), output_tokens=np.full(count, 3), models=models
    )

    def right(derived) -> bool:
        arrays = getattr(derived, "arrays", derived)
        expected = np.array(["a", "b", "c"])[(arrays.input_tokens - 10) % 3].tolist()
        return names(derived) == expected

    compiled = compile_trace(trace, "t")
    assert right(in_arrival_order(trace))
    assert right(compiled)
    assert right(head(compiled, 7))
    assert right(scale_load(compiled, 2.0))
    table = session_table(compiled)
    assert right(resample(table, table.schemes[0], np.random.default_rng(0)))
    monkeypatch.setattr("hisearch.traces.cache.cache_folder", lambda: tmp_path)
    store_cached("key", compiled)
    loaded = load_cached("key", "t")
    assert loaded is not None
    assert right(loaded)
    assert loaded.digest == compiled.digest != compile_trace(replace(trace, models=None), "t").digest


def test_sharing_with_another_model_is_refused():
    models = RequestModels(("a", "b"), np.array([0, 1], np.int32))
    with pytest.raises(ValueError, match="request 1: shares_with: a request of the same model"):
        make_trace(
            arrival_s=[0, 1], input_tokens=[4, 4], output_tokens=[1, 1], shares_with=[-1, 0], shared_tokens=[0, 4],
            models=models,
        )  # fmt: skip


def test_merged_traces_keep_what_they_had(write):
    first = read(write("a.jsonl", [HEADER, *(ROW | {"id": str(k), "block_ids": [1, 2]} for k in range(3))]))
    chain = [ROW | {"id": "x"}, {"id": "y", "previous": "x", "think_s": 1.0, "input_tokens": 9, "output_tokens": 2}]
    second = read(write("b.jsonl", [HEADER, *chain]))
    both = merged([asking_for(first, "one"), asking_for(second, "two")])
    assert names(both) == ["one"] * 3 + ["two"] * 2
    assert both.request_ids == ["1/0", "1/1", "1/2", "2/x", "2/y"]
    assert both.previous.tolist() == [-1, -1, -1, -1, 3]
    assert both.shares_with.tolist() == [-1, 0, 0, -1, -1]
    assert not both.open_loop
    assert len(set(both.session.tolist())) == 4
    with pytest.raises(ValueError, match="some of the traces name models"):
        merged([asking_for(first, "one"), second])
    with pytest.raises(ValueError, match="names models itself: one"):
        asking_for(asking_for(first, "one"), "two")
    with pytest.raises(ValueError, match="recorded times"):
        merged([replace(second, open_loop=True), second])
