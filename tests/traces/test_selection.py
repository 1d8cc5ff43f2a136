"""Compiled traces side by side, and separated again by model."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.traces.changes.merging import side_by_side
from hisearch.traces.changes.selection import head, requests_for
from hisearch.traces.compiled import CompiledTrace, TraceArrays
from hisearch.traces.compiler import compile_trace
from hisearch.traces.models import RequestModels
from hisearch.traces.trace import make_trace
from tests.kernels.systems import compiled, examples
from tests.reference.random_traces import TraceShape, random_trace

SHAPE = TraceShape(requests=30, rate_rps=12.0, prompt_tokens=200, output_tokens=30)


def same(actual: CompiledTrace, expected: CompiledTrace) -> None:
    """All that decides a simulation; sessions and tenants may have other numbers, each its own."""
    for name, values in actual.arrays._asdict().items():
        expected_values = getattr(expected.arrays, name)
        if name in ("session", "tenant"):
            values, expected_values = (
                np.unique(column, return_inverse=True)[1] for column in (values, expected_values)
            )
        np.testing.assert_array_equal(values, expected_values, err_msg=name)


@examples(40)
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3, unique=True))
def test_selection_restores_the_traces_that_were_combined(seeds: list[int]) -> None:
    traces = [compiled(random_trace(seed, SHAPE)) for seed in seeds]
    # Trees without runs that no request separates, as compiled traces have them.
    traces = [head(replace(trace), len(trace) - 1) for trace in traces]
    names = [f"model-{k}" for k in range(len(traces))]
    together = side_by_side(traces, names)
    assert len(together) == sum(len(trace) for trace in traces)
    assert (together.arrays.previous < np.arange(len(together))).all()
    for name, trace in zip(names, traces, strict=True):
        same(requests_for(together, [name, "another name"]), trace)


def test_nothing_is_shared_between_traces() -> None:
    trace = compiled(random_trace(1, SHAPE))
    together = side_by_side([trace, trace], ["a", "b"])
    arrays, model = together.arrays, together.models
    assert model is not None
    nodes = [set(arrays.prompt_node[model.model == k].tolist()) for k in range(2)]
    assert nodes[0] & nodes[1] <= {0}
    assert not set(arrays.session[model.model == 0].tolist()) & set(arrays.session[model.model == 1].tolist())


def _followed() -> CompiledTrace:
    trace = make_trace(
        arrival_s=np.array([0.0, np.nan]),
        input_tokens=np.array([4, 4]),
        output_tokens=np.array([2, 2]),
        previous=np.array([-1, 0]),
        think_s=np.array([0.0, 1.0]),
        models=RequestModels(("a", "b"), np.array([0, 1], np.int32)),
    )
    return compile_trace(trace, "followed", "closed_loop")


@pytest.mark.parametrize("name", ["a", "b"])
def test_requests_that_wait_for_another_model_cannot_be_separated(name: str) -> None:
    with pytest.raises(ValueError, match=r"request 1 waits for 0, which asks for another model"):
        requests_for(_followed(), [name])


def test_a_model_that_nobody_asks_for_is_refused() -> None:
    with pytest.raises(ValueError, match="asks for a, b, not for c or d"):
        requests_for(_followed(), ["c", "d"])
    with pytest.raises(ValueError, match="asks for no model"):
        requests_for(replace(_followed(), models=None), ["a"])


def test_columns_keep_their_types() -> None:
    trace = compiled(random_trace(3, SHAPE))
    selected = requests_for(side_by_side([trace, trace], ["a", "b"]), ["b"])
    assert [c.dtype for c in selected.arrays] == [c.dtype for c in trace.arrays]
    assert isinstance(selected.arrays, TraceArrays)
