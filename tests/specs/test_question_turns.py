"""Conversations of a question: its rate is that of all turns, also where the model's window ends some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generate import generate_trace

RATE = 8.0
#: Of 20,000 requests in conversations of five turns: three standard deviations.
NOISE = 0.05


@pytest.mark.parametrize(
    ("more", "is_cut"),
    [
        ({"input": "6000", "turns": 5, "shared": 1500}, True),
        ({"input": "500", "turns": 5}, False),
        ({"input": "3000", "turns": 3, "spread": 1.2}, True),
    ],
)
def test_the_rate_and_prompts_of_a_question_are_those_of_its_trace(more: dict[str, Any], is_cut: bool) -> None:
    question = Question(
        model="qwen3-32b",
        slo="ttft p95 < 2s",
        rate=RATE,
        output="400",
        gpu=("h100-sxm",),
        engine=("vllm",),
        weights=(),
        **more,
    )
    asked = study_from_question(question)
    generator = asked.resolved.workload.spec.generator  # type: ignore[union-attr]
    assert generator is not None
    arrays = compile_trace(generate_trace(generator.model_copy(update={"requests": 20_000})), "asked").arrays
    assert len(arrays.arrival_s) / np.ptp(arrays.arrival_s) == pytest.approx(RATE, rel=NOISE)
    stated = float(asked.prompts.split(" tokens")[0].replace(",", ""))
    assert stated == pytest.approx(float(arrays.input_tokens.mean()), rel=NOISE)
    assert ("end early" in asked.prompts) == is_cut
