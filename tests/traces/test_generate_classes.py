"""Generated traffic of several classes: shares, own arrivals, own laws, and draws that do not move with others'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.specs.workloads.workload import GeneratorSpec, LengthSpec
from hisearch.traces.generate import generate_trace
from hisearch.traces.trace import Trace

RATE = 2.0
BASE: dict[str, Any] = {
    "requests": 500,
    "arrivals": {"rate_rps": RATE},
    "first_input": {"distribution": "lognormal", "mean_log": 6.0, "sigma_log": 1.0, "max_tokens": 4000},
    "output": {"distribution": "lognormal", "mean_log": 5.0, "sigma_log": 0.5, "max_tokens": 800},
    "sessions": {"continue_probability": [0.5, 0.7], "think": {"p50_s": 20.0, "p90_s": 60.0}},
}


OWN = LengthSpec(distribution="constant", scale_tokens=9000)
#: Shares of one process, and one more class with arrivals of its own.
CLASSES: list[dict[str, Any]] = [
    {"name": "chat", "share": 0.7},
    {"name": "batch", "share": 0.3, "priority": 2, "tenants": [1, 1, 2], "first_input": OWN},
    {"name": "agents", "arrivals": {"rate_rps": 1.0, "process": "gamma", "cv": 3.0}, "priority": 1, "tenants": [5]},
]


def of_classes(classes: list[dict[str, Any]], **changes: Any) -> Trace:
    return generate_trace(GeneratorSpec.model_validate(BASE | {"classes": classes} | changes))


def test_classes_have_their_shares_their_rates_and_their_laws() -> None:
    trace = of_classes(CLASSES, requests=None, duration_s=4000.0, sessions={})
    count = {k: int((trace.priority == k).sum()) for k in (0, 1, 2)}
    assert count[1] == pytest.approx(4000, rel=0.2)
    assert (count[0] + count[2]) / 4000 == pytest.approx(RATE, rel=0.1)
    assert count[2] / (count[0] + count[2]) == pytest.approx(0.3, abs=0.03)
    assert set(trace.tenant[trace.priority == 2].tolist()) == {1, 2}
    assert (trace.tenant == 1).sum() / count[2] == pytest.approx(2 / 3, abs=0.05)
    assert set(trace.tenant[trace.priority == 1].tolist()) == {5}
    assert set(trace.input_tokens[trace.priority == 2].tolist()) == {9000}


def test_the_draws_of_a_class_do_not_move_with_those_of_others() -> None:
    """Each class has streams of its own, by its name (L6)."""
    longer = [dict(CLASSES[0], output=OWN), *CLASSES[1:]]
    before, after = of_classes(CLASSES), of_classes(longer)
    for priority in (1, 2):
        mine, theirs = before.priority == priority, after.priority == priority
        count = min(mine.sum(), theirs.sum())
        assert count > 5
        np.testing.assert_array_equal(before.output_tokens[mine][:count], after.output_tokens[theirs][:count])


def test_sessions_keep_their_class_and_their_own_prefixes() -> None:
    own = [
        dict(CLASSES[0]),
        dict(CLASSES[1], shared_prefixes=[{"name": "own", "tokens": 40, "share": 1.0}]),
        CLASSES[2],
    ]
    trace = of_classes(own, shared_prefixes=[{"name": "all", "tokens": 70, "share": 1.0}])
    before = trace.previous
    follows = before >= 0
    assert follows.any()
    for column in (trace.priority, trace.tenant, trace.session):
        np.testing.assert_array_equal(column[follows], column[before[follows]])
    shared = trace.shared_tokens[(~follows) & (trace.shares_with >= 0)]
    assert set(shared.tolist()) == {40, 70}
    other = trace.shares_with[~follows & (trace.shares_with >= 0)]
    of_batch = trace.priority[~follows & (trace.shares_with >= 0)] == 2
    np.testing.assert_array_equal(trace.priority[other] == 2, of_batch)


@given(seed=st.integers(0, 2**31), requests=st.integers(1, 300))
@settings(max_examples=25, deadline=None)
def test_a_trace_of_classes_ends_where_all_its_sources_are_complete(seed: int, requests: int) -> None:
    """The first requests of a longer trace are those of a shorter one, whichever process started their sessions."""
    short = generate_trace(GeneratorSpec.model_validate(BASE | {"classes": CLASSES, "requests": requests}), seed=seed)
    long = generate_trace(
        GeneratorSpec.model_validate(BASE | {"classes": CLASSES, "requests": requests}), seed=seed, until_s=1e4
    )
    assert len(short) == requests
    rows = list(zip(short.arrival_s, short.input_tokens, short.tenant, strict=True))
    earliest = sorted(zip(long.arrival_s, long.input_tokens, long.tenant, strict=True))[:requests]
    assert sorted(rows) == earliest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": [{"name": "a"}]}, "exactly one of share and arrivals"),
        ({"classes": [{"name": "a", "share": 0.5}]}, "add up to 0.5, not to 1"),
        ({"classes": [{"name": "a", "share": 0.5}] * 2}, "two classes have one name"),
        ({"classes": CLASSES[2:]}, "every class has arrivals of its own"),
        ({"classes": CLASSES, "arrivals": None}, "arrivals is needed"),
        ({"arrivals": None}, "arrivals is needed"),
        ({"classes": CLASSES, "arrivals": {"process": "closed_loop", "users": 3}}, "users in a closed loop"),
        (
            {"classes": [{"name": "a", "arrivals": {"process": "closed_loop", "users": 3}}], "arrivals": None},
            "a class in a closed loop of its own",
        ),
    ],
)
def test_classes_that_contradict_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GeneratorSpec.model_validate(BASE | changes)


def test_sessions_keep_their_adapters_where_the_workload_is_carried_on() -> None:
    """Of classes with arrivals of their own, whose sessions are numbered behind each other's."""
    classes = [{"name": name, "arrivals": {"rate_rps": 2.0}, "tenants": [at]} for at, name in enumerate("ab")]
    spec = GeneratorSpec.model_validate(
        {key: value for key, value in BASE.items() if key != "arrivals"}
        | {"classes": classes, "adapters": {"count": 8}}
    )
    first = generate_trace(spec)
    longer = generate_trace(spec, until_s=4.0 * float(np.nanmax(first.arrival_s)))

    def adapter_at(trace: Trace) -> dict[tuple[float, int], str | None]:
        assert trace.adapters is not None
        names = [None if each < 0 else trace.adapters.names[each] for each in trace.adapters.adapter]
        return dict(zip(zip(trace.arrival_s.tolist(), trace.tenant.tolist(), strict=True), names, strict=True))

    before, after = adapter_at(first), adapter_at(longer)
    both = before.keys() & after.keys()
    assert len(both) > 400
    assert all(before[key] == after[key] for key in both)
