"""One pool against prefill and decode apart: what hand-overs take is among the transfers, and their links are seen."""

from __future__ import annotations

import pytest

from hisearch.api.compare import compare_deployments
from hisearch.api.deployments.deployment import simulate_deployment
from hisearch.api.deployments.workload import load_trace


def test_hand_overs_are_transfers() -> None:
    pair = ("qwen3-32b-h100-tp2", "qwen3-32b-h100-prefill-decode")
    found = compare_deployments(*pair, "chat-multiturn", seeds=1, limit=150)
    transfers = {row.name: row for row in found.times}["transfers"]
    assert transfers.b_s > 0.0
    assert sum(row.b_s for row in found.times) == pytest.approx(found.figure("e2e_mean_s").b)  # type: ignore[union-attr]
    link = {driver.name: driver for driver in found.drivers}["busiest link"]
    disaggregated = simulate_deployment(pair[1], load_trace("chat-multiturn", limit=150)).to_dict()
    assert link.b == pytest.approx(max(row["network_utilisation"] for row in disaggregated["pools"]))
    assert link.b > 0.0
