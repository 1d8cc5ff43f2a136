"""Sampling bounded by top-p: what a sort of the logits costs, and who sorts."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.estimator import build_estimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sampling import BANDWIDTH, SORT_BYTES, bounded, sort_s
from hisearch.latency.sharding import Parallelism
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
LLAMA: ModelSpec = CATALOGUE.get("Model", "llama-3.1-8b").spec
GPT_OSS: ModelSpec = CATALOGUE.get("Model", "gpt-oss-120b").spec
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
PROFILE = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec


def engine(**settings: object) -> EngineSpec:
    return EngineSpec.model_validate({"name": "vllm", "version": "0.15.1", **settings})


def test_a_sort_moves_so_many_bytes_for_each_logit() -> None:
    seconds = LLAMA.vocab_size * SORT_BYTES / (H100.memory_bandwidth_bytes_per_s * BANDWIDTH)
    assert sort_s(LLAMA, H100, engine()) == pytest.approx(seconds)
    assert 5e-6 < seconds < 20e-6


@pytest.mark.parametrize(
    ("settings", "sorts"),
    [
        ({}, True),
        ({"top_p": False}, False),
        ({"version": "0.17.0"}, False),
        ({"version": "0.16.0.post1"}, True),
        ({"version": ""}, False),
        ({"name": "sglang", "version": "0.5.9"}, False),
    ],
)
def test_who_sorts(settings: dict[str, object], sorts: bool) -> None:
    assert (sort_s(LLAMA, H100, engine(**settings)) > 0) == sorts


def test_models_without_such_a_config_sort_only_where_asked() -> None:
    assert bounded(LLAMA)
    assert not bounded(GPT_OSS)
    assert sort_s(GPT_OSS, H100, engine()) == 0
    assert sort_s(GPT_OSS, H100, engine(top_p=True)) > 0


def test_a_model_may_say_so_itself() -> None:
    for model in (LLAMA, GPT_OSS):
        for said in (True, False):
            assert bounded(model.model_copy(update={"bounded_sampling": said})) == said


def test_a_step_is_longer_by_the_sort_of_its_sequences() -> None:
    sorting, plain = (
        build_estimator("vllm-h100-sxm", PROFILE)
        .compile(PricedWorker(LLAMA, H100, Parallelism(), None, "bf16", engine(top_p=top_p), 2048, 256, 100_000))
        .seconds.sequence_s
        for top_p in (True, False)
    )
    each_s = sort_s(LLAMA, H100, engine(top_p=True))
    np.testing.assert_allclose(sorting - plain, each_s * np.arange(len(plain)), atol=1e-12)
