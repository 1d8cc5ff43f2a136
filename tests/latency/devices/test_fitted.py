"""Accelerators by fitted laws: without devices, the scaled roofline."""

from __future__ import annotations

import numpy as np
import pytest
from devices_catalogue import CATALOGUE, compiled, worker
from latency_catalogue import H100, LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B, SGLANG, VLLM

from hisearch.latency.devices.build import WorkerDevices
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds, step_seconds

AUTO = CATALOGUE.get("LatencyProfile", "auto").spec
H100_SHEET = CATALOGUE.get("Accelerator", "h100-sxm").spec


@pytest.mark.parametrize("model", [LLAMA_8B, LLAMA_70B, QWEN3_30B_A3B], ids=lambda m: m.huggingface_id)
@pytest.mark.parametrize("engine", [VLLM, SGLANG], ids=lambda e: e.name)
def test_without_devices_it_is_the_scaled_roofline(model, engine):
    profile = CATALOGUE.get("LatencyProfile", f"{engine.name}-h100-sxm").spec
    tp = 4
    sizes = {"max_tokens": 2048, "max_sequences": 256, "max_context_tokens": 400_000}
    ours = compiled(model, H100_SHEET, engine, worker(), tp=tp, profile=profile, **sizes).seconds
    theirs = (
        ScaledEstimator("test", profile)
        .compile(PricedWorker(model, H100_SHEET, Parallelism(tp), None, "bf16", engine, **sizes))
        .seconds
    )
    for n, each in ((1, 1000), (33, 700), (200, 1500)):
        assert decode_step_seconds(ours, n, n * each) == pytest.approx(
            decode_step_seconds(theirs, n, n * each), rel=0.01
        )
    for chunk in ((2048, 0), (512, 8000)):
        seconds = step_seconds(ours, [chunk], [])
        assert seconds == pytest.approx(step_seconds(theirs, [chunk], []), rel=0.01)


def test_an_automatic_profile_takes_the_accelerators_laws():
    devices = worker(attached=["pim"], operators={"decode_attention": "pim"})
    costs = compiled(LLAMA_8B, H100_SHEET, VLLM, devices, profile=AUTO)
    assert costs.profile == "vllm-h100-sxm"
    assert costs.warnings == ()
    gpu = compiled(LLAMA_8B, H100_SHEET, VLLM, WorkerDevices(worker().spec, {}), profile=AUTO)
    np.testing.assert_allclose(costs.seconds.sequence_s, gpu.seconds.sequence_s)
    assert compiled(LLAMA_8B, H100, VLLM, devices, profile=AUTO).warnings
