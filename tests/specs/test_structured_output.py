"""Section ``structured_output`` of a pool: refusals, and flags of both servers."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hisearch.specs.deployments.pool import PoolSpec
from tests.specs.test_lora import flags


def pool(engine: dict[str, Any] | None = None, **settings: Any) -> PoolSpec:
    section = {"engine": {"name": "vllm"} | (engine or {}), "structured_output": {}}
    return PoolSpec.model_validate({"accelerator": "h100-sxm"} | section | settings)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"engine": {"name": "trtllm"}}, "for the engines sglang and vllm, not trtllm; leave structured_output out"),
        ({"pipeline_parallel": 2}, "not simulated together with structured_output"),
        ({"attention_data_parallel": 2}, "not simulated together with structured_output"),
        ({"tensor_parallel": 2, "prefill_context_parallel": 2}, "not simulated together with structured_output"),
        ({"role": "prefill"}, "not simulated together with structured_output"),
        ({"tiers": [{"medium": "ddr5", "gib": 64}]}, "not simulated together with structured_output"),
        ({"lora": {"max_loras": 2}}, "not simulated together with structured_output"),
        ({"engine": {"name": "sglang", "receive_interval": 4}}, "not simulated together with structured_output"),
        ({"engine": {"name": "sglang", "priority_scheduling": True}}, "not simulated together with structured_output"),
        ({"engine": {"speculation": {"method": "ngram", "draft_tokens": 3}}}, "together with structured_output"),
        ({"structured_output": {"backend": "outlines"}}, "xgrammar"),
    ],
)
def test_what_an_engine_lacks_or_is_not_simulated_is_refused(stated: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        pool(**stated)


def test_flags_of_both_servers() -> None:
    assert flags(pool())["--structured-outputs-config"] == ['{"backend": "xgrammar"}']
    assert flags(pool({"name": "sglang"}))["--grammar-backend"] == ["xgrammar"]
    assert "--structured-outputs-config" not in flags(pool(structured_output=None))
