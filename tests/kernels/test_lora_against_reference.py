"""Adapters in the kernels of vLLM and SGLang against the slow restatement, step by step, on random systems.

The systems are those that the recorders draw for the engines themselves.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED
from hisearch.record.sglang.adapters import random_adapter_case as random_sglang_case
from hisearch.record.vllm_adapters import random_adapter_case as random_vllm_case
from hisearch.specs.base import EngineName
from hisearch.validate.difference import equal_steps, first_difference
from tests.kernels.recorded_systems import both, system
from tests.kernels.systems import examples

#: The cases of each engine's recorder.
_DRAWS = {"vllm": random_vllm_case, "sglang": random_sglang_case}


@pytest.mark.parametrize(
    ("engine", "version"), [(name, release) for name in ("vllm", "sglang") for release in MODELLED[name]]
)
@examples(40)
@given(seed=st.integers(0, 2**40))
def test_adapters_equal_their_restatement(engine: EngineName, version: str, seed: int) -> None:
    recording = system(engine, version, seed, _DRAWS[engine])
    theirs, mine = both(recording)
    difference = first_difference(recording, theirs, mine)
    assert equal_steps(theirs, mine) == len(theirs.steps) == len(mine.steps), difference
    assert abs(theirs.finish_s - mine.finish_s).max() < 1e-6


def test_an_ended_copy_that_keeps_others_out_waits_for_an_arrival() -> None:
    """SGLang 0.5.9 notes an ended copy with a request of its adapter: others of an idle worker wait until then."""
    recording = system("sglang", "0.5.9", 12624, random_sglang_case)
    theirs, mine = both(recording)
    assert equal_steps(theirs, mine) == len(theirs.steps) == len(mine.steps), first_difference(recording, theirs, mine)
