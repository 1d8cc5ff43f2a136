"""Grammars in the kernels of vLLM and SGLang against the slow restatement, step by step, on random systems.

The systems are those that the recorders draw for the engines themselves.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED
from hisearch.kernels.core import python_set
from hisearch.record.sglang.grammars import random_grammar_case as random_sglang_case
from hisearch.record.vllm_grammars import random_grammar_case as random_vllm_case
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
def test_grammars_equal_their_restatement(engine: EngineName, version: str, seed: int) -> None:
    recording = system(engine, version, seed, _DRAWS[engine])
    theirs, mine = both(recording)
    difference = first_difference(recording, theirs, mine)
    assert equal_steps(theirs, mine) == len(theirs.steps) == len(mine.steps), difference
    assert abs(theirs.finish_s - mine.finish_s).max() < 1e-6


@examples(300)
@given(numbers=st.lists(st.integers(0, 3000), unique=True, min_size=1, max_size=400))
def test_found_requests_have_the_order_of_a_python_set(numbers: list[int]) -> None:
    """SGLang goes through a set of places in its queue, whose order is that of CPython's hash table."""
    tables = np.full((2, 4096), -1, np.int32)
    expected: set[int] = set()
    row, size = 0, 8
    for used, number in enumerate(numbers):
        row, size = python_set.add(tables, row, size, used, number)
        expected.add(number)
        slots = tables[row, :size]
        assert slots[slots >= 0].tolist() == list(expected)
