"""Routers of platforms by themselves: on random scripts of events they choose as their slow references do."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.policies import ROUTERS
from hisearch.simulate.lone_router import LoneRouter
from hisearch.specs.deployments.routing import RouterSpec
from tests.kernels.systems import compiled, examples, router_with, routers
from tests.reference.block_routers import Metrics
from tests.reference.cluster import tree_path
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.router import Router, RouterConfig

#: They keep state of their own and need no worker: what they are told comes from the script.
SETTINGS: dict[str, dict[str, Any]] = {
    "dynamo_kv": {"block_tracking": "approximate"},
    "endpoint_picker": {"metrics_refresh_s": 1.0},
    "prefix_aware": {},
    "prefix_cache": {},
}
SCRIPTS = {"": 60, "all": 1000}.get(os.environ.get("HISEARCH_FULL", ""), 300)
SHAPE = TraceShape(requests=60, prompt_tokens=60, shared_prefixes=3, fork=0.3, repeat=0.3)


def _specs(policy: str) -> st.SearchStrategy[RouterSpec]:
    names = [parameter.name for parameter in ROUTERS[policy].parameters]
    return routers((policy,)).map(
        lambda drawn: router_with(policy, **{name: getattr(drawn, name) for name in names} | SETTINGS.get(policy, {}))
    )


def _play(spec: RouterSpec, workers: int, seed: int) -> int:
    """Send all requests of a trace between other events; returns how many choices were compared."""
    script = np.random.default_rng(seed)
    trace = compiled(random_trace(seed % 1000, SHAPE)).arrays
    lone = LoneRouter(spec, trace, workers, seed=seed)
    parameters = {name: getattr(spec, name) for name in ROUTERS.parameters()}
    slow = Router(
        RouterConfig(spec.policy, seed, **parameters), workers, page_tokens=16,
        longest_prompt=int(trace.input_tokens.max()),
    )  # fmt: skip
    sent: dict[int, int] = {}
    waiting: list[int] = []
    now = 0.0
    for request in script.permutation(len(trace.arrival_s)).tolist():
        now += float(script.exponential(0.2))
        for other in list(sent):
            if other in waiting and script.random() < 0.3:
                waiting.remove(other)
                if spec.policy == "dynamo_kv":
                    lone.first_token(other, sent[other])
                slow.first_token(other)
            elif script.random() < 0.15:
                lone.finish(other, sent[other])
                slow.finished(other)
                waiting = [queued for queued in waiting if queued != other]
                del sent[other]
        for worker in range(workers):
            if script.random() < 0.3:
                scraped = Metrics(int(script.integers(4)), int(script.integers(6)), float(script.integers(9)) / 8)
                lone.tell(worker, scraped.waiting, scraped.running, scraped.usage)
                slow.picker.metrics[worker] = scraped
        path = tree_path(trace, int(trace.prompt_node[request]))
        expected = slow.dispatch(request, path, now, int(trace.session[request]))
        chosen, _ = lone.choose(request, now)
        assert chosen == expected, f"request {request} at {now}"
        lone.send(request, chosen)
        sent[request] = chosen
        waiting.append(request)
    return len(trace.arrival_s)


@pytest.mark.parametrize("policy", SETTINGS)
def test_choices_equal_those_of_the_slow_reference(policy: str) -> None:
    compared = 0

    @examples(SCRIPTS, always=True)
    @given(spec=_specs(policy), workers=st.integers(2, 6), seed=st.integers(0, 2**31))
    def check(spec: RouterSpec, workers: int, seed: int) -> None:
        nonlocal compared
        compared += _play(spec, workers, seed)

    check()
    assert compared > 100


@examples(SCRIPTS, always=True)
@given(spec=_specs("cache_aware"), workers=st.integers(2, 6), seed=st.integers(0, 2**31))
def test_trees_are_trimmed_as_the_slow_ones_are(spec: RouterSpec, workers: int, seed: int) -> None:
    script = np.random.default_rng(seed)
    trace = compiled(random_trace(seed % 1000, SHAPE)).arrays
    spec = spec.model_copy(update={"max_tree_characters": int(script.integers(1, 600))})
    lone = LoneRouter(spec, trace, workers, seed=seed)
    slow = Router(
        RouterConfig(spec.policy, seed, **{name: getattr(spec, name) for name in ROUTERS.parameters()}), workers
    )
    due_s, now = spec.eviction_interval_s, 0.0
    sent: dict[int, int] = {}
    for request in range(len(trace.arrival_s)):
        now += float(script.exponential(0.2))
        for other in [other for other in sent if script.random() < 0.15]:
            lone.finish(other, sent.pop(other))
            slow.finished(other)
        if now >= due_s:
            lone.trim()
            while due_s <= now:
                due_s += spec.eviction_interval_s
        path = tree_path(trace, int(trace.prompt_node[request]))
        expected = slow.dispatch(request, path, now, int(trace.session[request]))
        place, _ = lone.choose(request, now)
        assert slow.order[place] == expected, f"request {request} at {now}"
        assert lone.tree_tokens.tolist() == [slow.tree.size(k) for k in range(workers)]
        lone.send(request, place)
        sent[request] = place


@pytest.mark.parametrize("streamed", [True, False])
def test_sessions_of_streamed_answers_are_not_counted_before_prefill_workers(streamed: bool) -> None:
    """sglang-router 0.3.2 looks for them in the answer's headers: ``min_group`` then takes any worker."""
    spec = RouterSpec.model_validate({"policy": "manual", "assignment_mode": "min_group"})
    trace = compiled(random_trace(3, TraceShape(requests=8, follow_up=0.0))).arrays
    lone = LoneRouter(spec, trace, 3, disaggregated=True)
    assert lone.choose(0, drawn=(1, -1)) == (1, True)
    lone.send(0, 1)
    lone.count_answer(0, 1, 1, streamed=streamed)
    taken = {lone.choose(request, drawn=(place, -1))[0] for request, place in ((1, 0), (2, 1), (3, 2))}
    assert taken == ({0, 1, 2} if streamed else {0, 2})
