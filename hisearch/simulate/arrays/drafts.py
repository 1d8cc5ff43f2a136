"""From drafted tokens to the kernels' arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout.sim import SGLANG
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.traces.compiled import TraceArrays


def only_prices(plan: WorkerPlan, role: int) -> bool:
    """Whether drafts change the prices of a pool's steps alone: workers that make one token, but vLLM's without tiers.

    Without tiers SGLang's also have other keys in their tree. With tiers a hit is a token longer (SGLang), or a block
    (vLLM before 0.33, with a head).
    """
    return role == fl.PREFILL and (plan.engine.name != "vllm" or plan.movement is not None)


def settings(plan: WorkerPlan, role: int) -> dict[str, int]:
    """Fields of ``layout.sim.CONFIG`` for speculative decoding; 0 without."""
    speculation = plan.speculation
    decides = None if only_prices(plan, role) else speculation
    return {
        "draft_tokens": 0 if decides is None else decides.draft_tokens,
        "lookahead_tokens": 0 if decides is None else decides.lookahead_tokens,
        "reads_next_token": 0 if decides is None else decides.reads_next_token,
        "draft_seed": 0 if decides is None else decides.seed,
        "keys_pairs": speculation is not None
        and speculation.reads_next_token
        and plan.engine.name == "sglang"
        and plan.movement is None,
    }


def accepted(plan: WorkerPlan) -> F8:
    """Probability that the first 1, 2, … drafts are all accepted; of length 1 where nothing is drafted."""
    return np.array([0.0] if plan.speculation is None else plan.speculation.accepted, np.float64)


def with_nodes_as_hashed(trace: TraceArrays, config: Any) -> TraceArrays:
    """The trace as a pool of these settings has it.

    Where the token behind a page is part of its identity, nodes begin and end a token earlier: pages then differ by it.
    So they do where keys are pairs of tokens.
    """
    hashes_ahead = config.engine != SGLANG and config.reads_next_token and config.hashes_ahead
    if not (hashes_ahead or config.keys_pairs):
        return trace
    return trace._replace(
        start_tokens=np.maximum(trace.start_tokens - 1, 0), end_tokens=np.maximum(trace.end_tokens - 1, 0)
    )
