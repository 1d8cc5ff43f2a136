"""What grammars add to requests and steps: by hand, and that they change nothing where they take no time."""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate import simulate
from hisearch.simulate.plans.grammar_plan import RESULT_TIMEOUT_S, GrammarPlan, plan_grammars
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.traces.adapters import grammars_of
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels.systems import System, crowded, examples, plan, settled

COMPILE_S = 0.0123


def with_grammars(trace: CompiledTrace, names: list[str | None], compile_s: float) -> CompiledTrace:
    return replace(trace, grammars=grammars_of(names, [compile_s] * len(names)))


def lone_requests(engine: str, names: list[str | None], version: str = "", **laws: float) -> Result:
    """Requests far apart on an idle engine."""
    trace = compile_trace(
        make_trace(
            arrival_s=[float(10 * k) for k in range(len(names))],
            input_tokens=[40] * len(names),
            output_tokens=[8] * len(names),
        ),
        "lone",
    )
    spec = EngineSpec.model_validate(
        {"name": engine, "version": version, "page_tokens": 1 if engine == "sglang" else 4}
    )
    served = replace(plan(spec, 4096), grammars=GrammarPlan(2, **laws))
    return simulate(served, with_grammars(trace, names, COMPILE_S))


@pytest.mark.parametrize(
    ("engine", "version", "wait_s"),
    [
        ("vllm", "", COMPILE_S),
        ("vllm", "0.19.1", COMPILE_S),
        # Passes of 5 ms, with a look every 0.5 ms; before 0.5.23 each lasts that long.
        ("sglang", "0.5.23", 0.0125),
        ("sglang", "0.5.9", 0.015),
    ],
)
def test_the_first_request_of_a_grammar_waits_and_later_ones_do_not(engine: str, version: str, wait_s: float) -> None:
    result = lone_requests(engine, ["a", None, "a", "b"], version)
    ttft_s = result.requests.ttft_s
    assert ttft_s[2] == pytest.approx(ttft_s[1], abs=1e-12)
    assert ttft_s[[0, 3]] - ttft_s[1] == pytest.approx([wait_s, wait_s], abs=1e-9)
    (use,) = result.grammars
    assert (use.requests, use.grammars, use.compilations, use.waited) == (3, 2, 2, 2)
    assert use.wait_s == pytest.approx(2 * wait_s)
    assert use.compile_s == pytest.approx(2 * COMPILE_S)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_step_takes_the_longer_of_device_and_masks(engine: str) -> None:
    plain, short, long = (lone_requests(engine, ["a", "a"], fill_s=fill_s) for fill_s in (0.0, 1e-9, 0.5))
    np.testing.assert_array_equal(plain.requests.finish_s, short.requests.finish_s)
    second = long.requests
    assert second.finish_s[1] - second.first_token_s[1] == pytest.approx(7 * 0.5)
    (use,) = long.grammars
    assert use.sequences == use.steps
    assert use.host_s == pytest.approx(0.5 * use.sequences)


@examples(60)
@given(system=crowded("vllm"), seed=st.integers(0, 2**32 - 1))
def test_grammars_that_take_no_time_change_nothing(system: System, seed: int) -> None:
    """Of vLLM's newest release; earlier ones, and SGLang, have them enter the queue elsewhere."""
    plain = settled(system)
    drawn = np.random.default_rng(seed).integers(0, 4, len(system.trace)).tolist()
    trace = with_grammars(system.trace, [None if k == 0 else str(k) for k in drawn], 0.0)
    served: WorkerPlan = replace(system.plan, grammars=GrammarPlan(1))
    own = simulate(served, trace, replicas=system.workers, router=system.router, seed=system.seed)
    for name in (field.name for field in fields(plain.requests)):
        np.testing.assert_array_equal(getattr(own.requests, name), getattr(plain.requests, name), err_msg=name)
    np.testing.assert_array_equal(own.gap_counts, plain.gap_counts)


@examples(60)
@given(system=st.one_of(crowded("vllm"), crowded("sglang")), seed=st.integers(0, 2**32 - 1))
def test_a_log_changes_nothing_and_every_request_ends(system: System, seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = [None if k == 0 else str(k) for k in rng.integers(0, 6, len(system.trace)).tolist()]
    trace = with_grammars(system.trace, names, float(rng.choice([1e-4, 0.01, 0.3])))
    laws = {"fill_s": float(rng.choice([0.0, 1e-3])), "accept_s": float(rng.choice([0.0, 1e-4]))}
    served: WorkerPlan = replace(system.plan, grammars=GrammarPlan(2, **laws))
    options: dict[str, Any] = {"replicas": system.workers, "router": system.router, "seed": system.seed}
    plain, logged = simulate(served, trace, **options), simulate(served, trace, log=True, **options)
    assert np.isin(plain.requests.outcome, (Outcome.FINISHED, Outcome.TOO_LARGE)).all()
    for name in (field.name for field in fields(plain.requests)):
        np.testing.assert_array_equal(getattr(plain.requests, name), getattr(logged.requests, name), err_msg=name)
    np.testing.assert_array_equal(plain.gap_counts, logged.gap_counts)


def pool_of(engine: str, version: str = "", **settings: Any) -> PoolSpec:
    return PoolSpec.model_validate(
        {"accelerator": "h100-sxm", "engine": {"name": engine, "version": version}, "structured_output": settings}
    )


def test_threads_follow_the_host_s_cores() -> None:
    host = Catalogue().get("Host", "hgx-h100-8").spec.model_copy(update={"cpu_cores": 12})
    memory: Any = SimpleNamespace(kv_groups=None, window_pools=None, state_pools=None)
    made = {
        name: plan_grammars(pool_of(*name.split("-")), memory, host)
        for name in ("vllm-0.33.0", "vllm-0.19.1", "sglang-0.5.23")
    }
    assert [each and each.threads for each in made.values()] == [6, 6, 16]
    assert [each and each.look_s for each in made.values()] == [0.0, RESULT_TIMEOUT_S, 0.0]
    few = plan_grammars(pool_of("vllm", cpu_cores=3), memory, host)
    assert few is not None
    assert (few.threads, few.fill_threads) == (2, 1)
