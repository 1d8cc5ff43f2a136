"""How outputs end, as a workload says (``ignore_eos``): a decode in flight behind the last is paid for, or is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED, UNRECORDED
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.engine_rules import rules_in_force
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import System, examples
from tests.kernels.test_against_reference import _assert_same_steps
from tests.reference.random_traces import TraceShape

#: Rule by which an engine knows that a token in flight is a request's last; vLLM's scheduler always has.
KNOWS_LIMITS = {"sglang": "skips_last_decode", "trtllm": "ends_by_length"}
RELEASES = [(name, version) for name, versions in (MODELLED | UNRECORDED).items() for version in versions]
#: One request at a time, or a few at once; each declares what it makes.
ALONE = TraceShape(requests=1, prompt_tokens=20, output_tokens=12, slack=1.0)
SEVERAL = TraceShape(requests=25, rate_rps=60.0, prompt_tokens=30, output_tokens=12, slack=1.0, repeat=0.0)
#: Tokens beyond anything that these requests hold together.
AMPLE = 100_000


def engine_of(name: str, version: str, overlap: bool) -> EngineSpec:
    """An engine that has places for all."""
    return EngineSpec.model_validate(
        {"name": name, "version": version, "overlap": overlap, "max_running_requests": 64, "chunk_tokens": 256}
    )


def ending(system: System, ignore_eos: bool) -> System:
    """The system with a workload that says how outputs end; all declare what they make."""
    return _with_trace(system, replace(system.trace, ignore_eos=ignore_eos))


def longer(system: System) -> System:
    """The system with requests that declare a token more than they make, and so end by themselves."""
    arrays = system.trace.arrays
    return _with_trace(
        system, replace(system.trace, arrays=arrays._replace(max_output_tokens=arrays.output_tokens + 1))
    )


def _with_trace(system: System, trace: CompiledTrace) -> System:
    changed = replace(system)
    object.__setattr__(changed, "trace", trace)
    return changed


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("name", "version"), RELEASES)
def test_who_ends_by_itself_decodes_once_more(name: str, version: str, overlap: bool) -> None:
    """Only where steps overlap, and whoever ends by a limit that the engine knows does not."""
    system = System(seed=3, engine=engine_of(name, version, overlap), capacity_tokens=AMPLE, shape=ALONE)
    output = int(system.trace.arrays.output_tokens[0])
    assert output == system.trace.arrays.max_output_tokens[0]
    pinned, by_itself = (
        int(ending(system, ignores).simulate(log=True).workers.decode_tokens[0]) for ignores in (True, False)
    )
    knows = name not in KNOWS_LIMITS or rules_in_force(name, version)[KNOWS_LIMITS[name]]
    # The first token comes with the prompt.
    assert pinned == output - 1 + (overlap and not knows)
    assert by_itself == output - 1 + overlap


@examples(60)
@given(
    release=st.sampled_from(RELEASES), overlap=st.booleans(), ignores=st.booleans(), seed=st.integers(0, 1 << 20),
)  # fmt: skip
def test_endings_equal_the_restatement(release: tuple[str, str], overlap: bool, ignores: bool, seed: int) -> None:
    """Every step. Where a token ends outputs, the restatement has requests that declare one more than they make."""
    system = System(
        seed=seed, engine=engine_of(*release, overlap), capacity_tokens=AMPLE, shape=SEVERAL, ignore_eos=ignores
    )
    stated = ending(replace(system, ignore_eos=False), ignores)
    restated = system if ignores else longer(system)
    result = stated.simulate(log=True)
    _assert_same_steps(result, restated.reference())
    assert np.array_equal(result.requests.output_tokens, system.trace.arrays.output_tokens)
