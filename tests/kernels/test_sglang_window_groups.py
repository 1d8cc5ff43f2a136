"""Attention groups of SGLang with a pool for windows each: the kernels against the restatement, and what must hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.base.engine_rules import GROUPS_CONSERVATIVENESS, WINDOW_EVICTION_INTERVAL
from hisearch.latency.costs import LockstepCosts
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Result, WorkerPlan
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck
from hisearch.simulate.plans.groups_plan import WindowsPlan
from tests.kernels.systems import LAW, SHUFFLE_STREAMS, System, examples, sglang_config, sglang_engines
from tests.kernels.test_hicache_against_reference import assert_same_requests
from tests.kernels.test_lockstep_steps import GRAPHS, SHARED_S, shared_seconds
from tests.kernels.test_lockstep_with_tiers import assert_same_lockstep_steps
from tests.kernels.tier_systems import requests_of
from tests.reference.random_traces import TraceShape
from tests.reference.restatement.recording import Recording
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.sglang_windows import WindowsConfig, WindowsWorker
from tests.reference.restatement.splitmix import SplitMix64
from tests.reference.restatement.vllm_lockstep import Batch
from tests.reference.sglang_lockstep import serve

#: Prompts and outputs of some windows.
SHAPE = TraceShape(requests=40, rate_rps=60.0, prompt_tokens=150, output_tokens=120, shared_prefixes=3, follow_up=0.3)


@dataclass(frozen=True)
class WindowGroups(System):
    """One worker of several attention groups.

    Attributes:
        groups: how many.
        window: tokens that a layer with a window sees besides the newest. windowed: tokens of that pool.
    """

    groups: int = 2
    window: int = 31
    windowed: int = 400

    @property
    def plan(self) -> WorkerPlan:
        """One worker."""
        worker = super().plan
        page = self.engine.page_size
        return replace(
            worker,
            costs=replace(worker.costs, lockstep=LockstepCosts(LAW.token_s, SHARED_S, GRAPHS)),
            split=Parallelism(1, attention_data=self.groups),
            windows=WindowsPlan(self.window, self.windowed // page * page),
        )

    def configs(self) -> list[WindowsConfig]:
        """Settings of the groups."""
        streams = SplitMix64(self.seed ^ SHUFFLE_STREAMS)
        made = []
        for _ in range(self.groups):
            plain = sglang_config(self.engine, self.capacity_tokens, ignore_eos=self.ignore_eos, seed=streams.next())
            config = WindowsConfig(
                **vars(plain), sliding_window_size=self.window, swa_max_total_num_tokens=self.windowed
            )
            relaxed = GROUPS_CONSERVATIVENESS * config.schedule_conservativeness
            made.append(replace(config, schedule_conservativeness=relaxed))
        return made


@st.composite
def window_groups(draw: st.DrawFn) -> WindowGroups:
    """Groups whose pools are short now and then."""
    engine = draw(sglang_engines(version="0.5.23")).model_copy(update={"receive_interval": 1})
    window = draw(st.sampled_from([7, 31, 127]))
    prompt = engine.chunk_tokens if engine.chunked_prefill else 600
    least = 2 * window + WINDOW_EVICTION_INTERVAL + 4 * engine.page_size + prompt
    windowed = int(least * draw(st.sampled_from([1.0, 1.5, 4.0])))
    return WindowGroups(
        seed=draw(st.integers(0, 1 << 20)),
        engine=engine,
        capacity_tokens=max(windowed, draw(st.sampled_from([700, 1500, 8000]))),
        shape=SHAPE,
        ignore_eos=draw(st.booleans()),
        groups=draw(st.integers(2, 4)),
        window=window,
        windowed=windowed,
    )


def restated(system: WindowGroups) -> Recording | None:
    """The restatement's run; None where it runs out of memory or waits for ever."""

    def cost(batches: Sequence[Batch]) -> float:
        tokens = [sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches]
        if not any(chunks for chunks, _, _ in batches):
            most = max(tokens)
            tokens = [next((size for size in GRAPHS if size >= most), most)] * len(tokens)
        parts = [
            step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)
            for chunks, decodes, sampling in batches
            if chunks or decodes
        ]
        return max(parts) + shared_seconds(sum(tokens), system.groups)

    configs = system.configs()
    alone = WindowsWorker(configs[0], lambda _chunks, _decodes, _sampling: 0.0)
    requests = [request for request in requests_of(system.trace.arrays) if alone.rejection(request) is None]
    try:
        return serve(configs, requests, cost)
    except (OutOfMemoryError, RuntimeError):
        return None


def simulated(system: WindowGroups) -> Result | None:
    """The kernels' run; None likewise."""
    try:
        return system.simulate(log=True)
    except (EngineOutOfMemory, EngineStuck):
        return None


@examples(60)
@given(system=window_groups())
def test_the_kernels_equal_the_slow_restatement(system: WindowGroups) -> None:
    recording = restated(system)
    assume(recording is not None)
    assert recording is not None
    result = simulated(system)
    assert result is not None
    assert_same_requests(result, recording)
    assert_same_lockstep_steps(result, recording)
