"""Collectives over PCIe of accelerators whose own were not measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.pcie import pcie_collectives
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.priced import AcrossHosts, PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from tests.latency.test_transfer import AUTO, CATALOGUE, VLLM, _costs

ENGINES = ("vllm", "sglang", "trtllm")


def card(name: str, **update: Any) -> Any:
    return Catalogue().get("Accelerator", name).spec.model_copy(update=update)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("name", "nearest"), [("a10g", "l40s"), ("rtx4090", "l40s"), ("h100-pcie", "rtx-pro-6000")])
def test_the_nearest_link_counts(engine: str, name: str, nearest: str) -> None:
    over = pcie_collectives(card(name), [choice for choice in AUTO.choices if choice.engine == engine])
    assert over is not None
    assert over.accelerator == nearest
    assert nearest in over.warning


def test_seconds_scale_with_the_link_and_launches_do_not() -> None:
    measured = card("l40s")
    slower = card("l40s", peer_link=measured.peer_link.model_copy(update={"bandwidth_bytes_per_s": 21e9}))
    curves = [Collectives(pcie_collectives(sheet, VLLM).curves, 1.0, 1.0) for sheet in (measured, slower)]  # type: ignore[union-attr]
    small, large = np.array([512.0]), np.array([5e8])
    ratios = [curves[1].all_reduce_s(size, 8) / curves[0].all_reduce_s(size, 8) for size in (small, large)]
    assert ratios[0] == pytest.approx(1.0, abs=0.1)
    assert ratios[1] == pytest.approx(1.5, rel=0.02)


def test_a_measured_card_keeps_its_own() -> None:
    """The automatic profile prices it as its own profile does, and doubts nothing."""
    eight = _costs(card("l40s"), split=Parallelism(8))
    priced = PricedWorker(
        CATALOGUE.get("Model", "llama-3.1-8b").spec, card("l40s"), Parallelism(8), None, "bf16",
        EngineSpec(name="vllm"), max_tokens=4096, max_sequences=256, max_context_tokens=500_000,
    )  # fmt: skip
    own = build_estimator("vllm-l40s", CATALOGUE.get("LatencyProfile", "vllm-l40s").spec).compile(priced)
    np.testing.assert_array_equal(eight.seconds.token_s, own.seconds.token_s)
    assert not any("over PCIe" in warning for warning in eight.warnings)


@pytest.mark.parametrize("name", ["h100-nvl", "gh200", "mi300x"])
def test_other_links_have_none(name: str) -> None:
    assert card(name).peer_link.kind != "pcie"
    assert pcie_collectives(card(name), VLLM) is None


@pytest.mark.parametrize("name", ["rtx4090", "a10g"])
def test_prompts_over_eight_ranks_wait_for_pcie(name: str) -> None:
    """By laws that are carried over, and by the roofline: both say that machines differ."""
    alone, eight = (_costs(card(name), split=Parallelism(ranks)) for ranks in (1, 8))
    prompt_s = [step_seconds(costs.seconds, [(2048, 0)], []) for costs in (alone, eight)]
    assert prompt_s[1] > prompt_s[0]
    assert not any("over PCIe" in warning for warning in alone.warnings)
    assert any("collectives over PCIe are those of l40s" in warning for warning in eight.warnings)


def test_bridges_join_pairs_that_talk_over_pcie() -> None:
    """Two ranks go by the bridge; of four, the pairs' halves pass the host link, as between hosts."""
    bridged, whole = card("h100-nvl"), card("h100-nvl", peer_ranks=None)
    assert bridged.peer_ranks == 2
    times = {
        ranks: [
            step_seconds(_costs(sheet, split=Parallelism(ranks)).seconds, [(4096, 0)], []) for sheet in (bridged, whole)
        ]
        for ranks in (1, 2, 4, 8)
    }
    for ranks in (1, 2):
        assert times[ranks][0] == times[ranks][1]
    layers, payload = 32, 2 * 4096 * 4096
    share = 0.7 * bridged.host_link.bandwidth_bytes_per_s
    # Each all-reduce scatters and gathers: a rank sends half of its pair's half each way.
    extra_s = 2 * layers * 2 * (payload / 4 / share)
    assert times[4][0] - times[4][1] == pytest.approx(extra_s, rel=0.35)
    assert times[8][0] > times[8][1] + extra_s


def test_curves_that_were_measured_on_bridged_cards_count_as_they_are() -> None:
    """They have in them what lies between the bridges; so a fused all-reduce is not taken across these either."""
    laws = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec
    seconds = []
    for peer_ranks in (2, None):
        priced = PricedWorker(
            CATALOGUE.get("Model", "llama-3.1-8b").spec, card("h100-nvl", peer_ranks=peer_ranks), Parallelism(4), None,
            "bf16", EngineSpec(name="vllm", fused_all_reduce=False), max_tokens=4096, max_sequences=256,
            max_context_tokens=500_000,
        )  # fmt: skip
        seconds.append(build_estimator("mine", laws).compile(priced).seconds.token_s)
    np.testing.assert_array_equal(*seconds)


def test_groups_that_ranks_do_not_fill_pass_the_host_link_too() -> None:
    hosts = AcrossHosts(4, 1e10, 1e-5)
    between = [Collectives(None, 1e12, 0.0, hosts).all_gather_s(np.array([1e8]), ranks)[0] for ranks in (4, 6, 8)]
    assert between[0] < 0.1 * between[1]
    assert between[1] == pytest.approx(between[2], rel=0.01)
