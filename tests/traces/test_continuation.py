"""A workload carried on: its first part is what it was, and caches gain nothing by a repetition."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from hisearch.specs.workloads.workload import GeneratorSpec
from hisearch.traces.changes.continuation import Continuation, continuation_of, period_s, repeated
from hisearch.traces.compiled import REQUEST_COLUMNS, CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace
from hisearch.traces.stats import ideal_hit_tokens

CHAT = GeneratorSpec.model_validate(
    {
        "requests": 900,
        "arrivals": {"rate_rps": 4.0},
        "first_input": {"distribution": "lognormal", "mean_log": 6, "sigma_log": 0.7},
        "output": {"distribution": "lognormal", "mean_log": 4, "sigma_log": 0.5},
        "sessions": {"continue_probability": [0.6], "think": {"p50_s": 5, "p90_s": 15}},
        "shared_prefixes": [{"name": "system prompt", "tokens": 300, "share": 0.8}],
    }
)


def chat(seed: int = 3) -> CompiledTrace:
    return compile_trace(generate_trace(CHAT, seed=seed), "chat")


def carried_on(trace: CompiledTrace, generator: GeneratorSpec | None = None) -> Continuation:
    continuation = continuation_of(trace, generator, 3)
    assert continuation is not None
    return continuation


def test_the_first_part_of_a_longer_draw_is_the_shorter_one() -> None:
    short, long = chat().arrays, carried_on(chat(), CHAT).lasting(1000.0).arrays
    count = len(short.arrival_s)
    assert len(long.arrival_s) > 3 * count
    for name in ("arrival_s", "input_tokens", "output_tokens", "previous", "think_s"):
        np.testing.assert_array_equal(getattr(long, name)[:count], getattr(short, name), err_msg=name)


@pytest.mark.parametrize("generator", [CHAT, None])
def test_a_span_is_the_same_however_much_was_made_before(generator: GeneratorSpec | None) -> None:
    fresh, used = carried_on(chat(), generator), carried_on(chat(), generator)
    used.lasting(2500.0)
    elsewhere = pickle.loads(pickle.dumps(used))
    digests = {each.lasting(700.0).digest for each in (fresh, used, elsewhere)}
    assert len(digests) == 1


def test_a_repetition_shares_nothing_with_the_one_before() -> None:
    once, trace = chat(), repeated(chat(), 3)
    count = len(once)
    assert len(trace) == 3 * count
    assert trace.arrays.end_tokens.sum() - trace.arrays.start_tokens.sum() == 3 * (
        once.arrays.end_tokens.sum() - once.arrays.start_tokens.sum()
    )
    hits = ideal_hit_tokens(trace)
    np.testing.assert_array_equal(hits, np.tile(ideal_hit_tokens(once), 3))
    for name in REQUEST_COLUMNS:
        assert len(getattr(trace.arrays, name)) == 3 * count
    later = slice(2 * count, 3 * count)
    np.testing.assert_allclose(trace.arrays.arrival_s[later], once.arrays.arrival_s + 2 * period_s(once))
    follows = once.arrays.previous >= 0
    np.testing.assert_array_equal(trace.arrays.previous[later][follows], once.arrays.previous[follows] + 2 * count)
    assert (trace.arrays.previous[later][~follows] == -1).all()


def test_a_closed_loop_does_not_go_on() -> None:
    users = CHAT.model_copy(
        update={"arrivals": CHAT.arrivals.model_copy(update={"process": "closed_loop", "users": 8})}
    )
    assert continuation_of(compile_trace(generate_trace(users), "users"), users) is None
    with pytest.raises(ValueError, match="no clock"):
        generate_trace(users, until_s=10.0)
