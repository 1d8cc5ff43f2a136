"""The registry of estimators and the cache of compiled costs."""

from __future__ import annotations

import pytest
from latency_catalogue import A100, H100, LLAMA_8B, PROFILE, SGLANG, VLLM

from hisearch.latency.estimator import build_estimator, compile_costs, estimators, register
from hisearch.latency.estimators.roofline import RooflineEstimator


def compile_small(accelerator=H100, engine=VLLM, profile=PROFILE, **changes):
    options = {
        "tensor_parallel": 1, "weight_dtype": None, "kv_dtype": "bf16", "max_tokens": 64, "max_sequences": 8,
        "max_context_tokens": 1024, **changes,
    }  # fmt: skip
    return compile_costs("test", profile, LLAMA_8B, accelerator, engine=engine, **options)


def test_estimators_are_found_by_name():
    assert "roofline" in estimators()
    assert isinstance(build_estimator("test", PROFILE), RooflineEstimator)


def test_unknown_estimator_is_refused_with_what_is_known():
    odd = PROFILE.model_copy(update={"estimator": "crystal-ball"})
    with pytest.raises(ValueError, match=r"profile p: no estimator named 'crystal-ball'; known: .*roofline"):
        build_estimator("p", odd)


def test_a_name_is_taken_once():
    estimators()
    with pytest.raises(ValueError, match="'roofline' is registered twice"):
        register("roofline")(lambda name, profile: RooflineEstimator(name, profile))


def test_equal_questions_are_compiled_once():
    assert compile_small() is compile_small(accelerator=H100.model_copy())


@pytest.mark.parametrize(
    "change",
    [
        {"accelerator": A100},
        {"engine": SGLANG},
        {"weight_dtype": "fp8"},
        {"kv_dtype": "fp8"},
        {"max_tokens": 65},
        {"profile": PROFILE.model_copy(update={"relative_error": 0.5})},
    ],
)
def test_different_questions_are_not(change):
    assert compile_small() is not compile_small(**change)
