"""Formats narrower than the checkpoint's are said, with the price of keeping the checkpoint's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hisearch.search.model.trial import Trial
from hisearch.search.select.formats import describe_formats, narrower_formats
from hisearch.specs.documents.catalogue import Catalogue
from tests.search.fakes import make_deployment, make_problem, make_trial

CATALOGUE = Catalogue()


@pytest.mark.parametrize(
    ("model", "weights", "kv", "words"),
    [
        ("qwen3-32b", None, "bf16", ""),
        ("qwen3-32b", "fp16", "fp16", ""),
        ("qwen3-32b", "fp8", "bf16", "fp8 weights (the checkpoint has bf16)"),
        ("qwen3-32b", None, "fp8", "KV in fp8"),
        ("qwen3-32b", "int4", "fp8", "int4 weights (the checkpoint has bf16) and KV in fp8"),
        ("deepseek-v3", None, "bf16", ""),
        ("deepseek-v3", "bf16", "bf16", ""),
        ("deepseek-v3", "nvfp4", "bf16", "nvfp4 weights (the checkpoint has fp8)"),
        ("gpt-oss-120b", "fp4", "bf16", ""),
    ],
)
def test_narrower_is_what_has_fewer_bytes_than_the_checkpoint(model: str, weights: Any, kv: Any, words: str) -> None:
    deployment = make_deployment()
    pool = deployment.pool.model_copy(update={"weight_dtype": weights, "kv_dtype": kv})
    deployment = deployment.model_copy(update={"pools": [pool]})
    assert narrower_formats(CATALOGUE.get("Model", model).spec, deployment) == words


def _trial(number: int, usd: float, weights: Any, **changes: Any) -> Trial:
    trial = make_trial(number, 1.0, 5.0, usd, **changes)
    pool = trial.deployment.pool.model_copy(update={"weight_dtype": weights})
    return replace(trial, deployment=trial.deployment.model_copy(update={"pools": [pool]}))


def test_the_price_of_keeping_the_checkpoints_format_is_named() -> None:
    execution = make_problem().space.execution
    model = CATALOGUE.get("Model", "qwen3-32b").spec
    narrow, wide, dear = _trial(0, 4.0, "fp8"), _trial(1, 5.5, None), _trial(2, 7.0, "bf16")
    missing, sliced = _trial(3, 4.5, None, feasible=False), _trial(4, 4.2, None, slice_fraction=0.3)
    text = describe_formats(model, narrow, [narrow, dear, wide, missing, sliced], execution)
    assert text.startswith("It serves fp8 weights (the checkpoint has bf16): answers differ")
    assert "keeps the checkpoint's formats" in text
    assert text.endswith("at $5.50 per hour, $1.50 more.")
    assert describe_formats(model, narrow, [narrow, missing], execution).endswith("was found to meet the SLO.")
    assert describe_formats(model, narrow, [narrow, sliced], execution).endswith("was simulated on the whole trace.")
    assert (
        describe_formats(model, wide, [narrow, wide], execution)
        == describe_formats(model, None, [narrow], execution)
        == ""
    )
    narrowed = execution.model_copy(update={"weight_dtypes": ["fp8"]})
    assert describe_formats(model, narrow, [narrow, missing], narrowed).endswith("space has no deployment with them.")
    assert describe_formats(model, narrow, [narrow, wide], narrowed).endswith("$1.50 more.")
