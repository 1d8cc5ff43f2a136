"""Factors on decode and prefill: what a step reads, and what its tokens add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.corrections import corrected, read_seconds
from hisearch.latency.estimator import build_estimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.machines.profile import CorrectionSpec
from tests.latency.test_transfer import AUTO, CATALOGUE


@given(st.lists(st.floats(0.0, 1e-3), min_size=2, max_size=60))
def test_reading_is_part_of_every_step_and_never_falls(rises: list[float]) -> None:
    token_s = np.concatenate([[0.0], np.cumsum(rises)])
    read_s = read_seconds(token_s)
    assert (np.diff(read_s) >= -1e-12).all()
    assert (read_s <= token_s[1:] + 1e-15).all()
    assert read_s[0] == pytest.approx(token_s[1])
    assert (np.diff(token_s[1:] - read_s) >= -1e-9).all()


def _costs(model: str, engine: Any, ranks: int) -> Any:
    priced = PricedWorker(
        CATALOGUE.get("Model", model).spec, CATALOGUE.get("Accelerator", "h200").spec, Parallelism(ranks), None, "bf16",
        EngineSpec(name=engine), max_tokens=8192, max_sequences=256, max_context_tokens=500_000,
    )  # fmt: skip
    return build_estimator("auto", AUTO).compile(priced)


@pytest.mark.parametrize(
    ("model", "engine", "ranks"),
    [("qwen3-32b", "sglang", 2), ("gpt-oss-120b", "vllm", 2), ("deepseek-v3", "sglang", 8)],
)
def test_decodes_go_by_their_own_factor_with_experts_too(model: str, engine: str, ranks: int) -> None:
    """The more decodes a step has the more experts it reads: that is no prompt's time."""
    costs = _costs(model, engine, ranks)
    slow_prompts, slow_decodes = (
        corrected(costs, CorrectionSpec(**{name: 2.0})).seconds for name in ("prefill", "decode")
    )
    for batch in (8, 32, 64):
        plain, by_prompts, by_decodes = (
            decode_step_seconds(seconds, batch, 1000 * batch) for seconds in (costs.seconds, slow_prompts, slow_decodes)
        )
        assert by_prompts < 1.15 * plain
        assert by_decodes > 1.8 * (plain - costs.seconds.host_s)
    prompt = [(8192, 0)]
    assert step_seconds(slow_prompts, prompt, []) > 1.7 * step_seconds(costs.seconds, prompt, [])
