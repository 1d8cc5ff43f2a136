"""SGLang's prompts under attention groups: what all-reduces add to a step, and to which steps."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue

CATALOGUE = Catalogue()
DEEPSEEK = CATALOGUE.get("Model", "deepseek-v3").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec
#: Layers with an FFN, hidden size, bytes of an activation; attention groups of one rank each.
LAYERS, HIDDEN, BYTES, GROUPS = 61, 7168, 2, 8


def priced(engine: EngineName, *, all_to_all: bool = False) -> PricedWorker:
    settings = EngineSpec(name=engine, chunk_tokens=2048, max_running_requests=64)
    split = Parallelism(1, GROUPS, GROUPS, all_to_all=all_to_all)
    return PricedWorker(DEEPSEEK, H200, split, None, "bf16", settings, 2048, 64, 100_000)


def scaled(engine: EngineName, *, all_to_all: bool = False) -> CompiledCosts:
    profile = CATALOGUE.get("LatencyProfile", f"{engine}-h200").spec
    return ScaledEstimator(f"{engine}-h200", profile).compile(priced(engine, all_to_all=all_to_all))


def test_steps_with_prompts_move_twice_the_bytes() -> None:
    """Independent of the module: two sums of all tokens for a gather and a scatter, and three passes over memory."""
    profile = CATALOGUE.get("LatencyProfile", "sglang-h200").spec
    collectives = ScaledEstimator("sglang-h200", profile).worker(priced("sglang")).collectives
    costs = scaled("sglang").lockstep
    assert costs is not None
    assert costs.by_kind_s is not None
    decodes, prompts, mixed = costs.by_kind_s
    assert not decodes.any()
    assert (prompts == mixed).all()
    sent = np.array([float(GROUPS * 2048 * HIDDEN * BYTES)])
    gathered_s = collectives.all_gather_s(sent, GROUPS) + collectives.reduce_scatter_s(sent, GROUPS)
    reduced_s = 2.0 * collectives.all_reduce_s(sent, GROUPS)
    least_s = 3.0 * sent / H200.memory_bandwidth_bytes_per_s
    more_s = float(prompts[2048]) / LAYERS - float(reduced_s[0] - gathered_s[0])
    assert float(least_s[0]) <= more_s <= 1.5 * float(least_s[0])
    # A sum moves as much as a gather and a scatter together; switches that add up make it cheaper than these.
    assert 0.3 <= float(reduced_s[0] / gathered_s[0]) - 1.0 <= 1.3


def test_more_tokens_take_longer_and_none_take_nothing() -> None:
    costs = scaled("sglang").lockstep
    assert costs is not None
    assert costs.by_kind_s is not None
    assert (np.diff(costs.by_kind_s[1]) >= 0.0).all()
    assert costs.by_kind_s[1][0] == 0.0


@pytest.mark.parametrize(("engine", "all_to_all"), [("vllm", False), ("trtllm", False), ("sglang", True)])
def test_nothing_is_added_elsewhere(engine: EngineName, all_to_all: bool) -> None:
    costs = scaled(engine, all_to_all=all_to_all).lockstep
    assert costs is not None
    assert costs.by_kind_s is None


def test_the_roofline_has_it_too() -> None:
    profile = CATALOGUE.get("LatencyProfile", "roofline").spec
    costs = RooflineEstimator("roofline", profile).compile(priced("sglang")).lockstep
    assert costs is not None
    assert costs.by_kind_s is not None
    assert costs.by_kind_s[1][2048] > 0.0


def test_estimates_of_prompts_count_it() -> None:
    costs = scaled("sglang")
    assert costs.lockstep is not None
    assert costs.lockstep.by_kind_s is not None
    more_s = costs.prompt_seconds.token_s - costs.seconds.token_s
    assert more_s[2048] == pytest.approx(float(costs.lockstep.by_kind_s[1][2048]))
    plain = scaled("vllm")
    assert plain.prompt_seconds is plain.seconds
