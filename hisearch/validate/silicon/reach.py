"""Rows measured faster than their accelerator allows: they cannot be times of the server.

    decoding = in flight * time of its tokens / (TTFT + time of its tokens)         Little's law, of the row's own means
    least    = a step of that many sequences at the data sheet's bandwidth and peak / tokens of a step

A step reads every weight that it needs once and the context of each sequence, and does their arithmetic. Kernel
launches, collectives, the host and prompts are left out, and every drafted token is accepted. So no server of these
weights and this split makes tokens faster. Distinct experts are those that tokens draw by popularity
(``latency.laws.moe.drawn``), fewer than with uniform draws.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hisearch.latency.laws.moe import Experts, drawn
from hisearch.latency.priced import PricedWorker
from hisearch.latency.workers.roofline import RooflineWorker, peak_worker
from hisearch.validate.silicon.campaigns import Conditions
from hisearch.validate.silicon.rows import SiliconRow


def beyond_reach(row: SiliconRow, priced: PricedWorker, conditions: Conditions) -> bool:
    """Whether ``row`` was measured with a TPOT below the least that ``priced``, its attention group, can have."""
    return row.measured_tpot_s < least_tpot_s(row, priced, conditions)


def least_tpot_s(row: SiliconRow, priced: PricedWorker, conditions: Conditions) -> float:
    """Seconds per token with the number of decoding sequences from the row's own means (see the module's law)."""
    output_tokens = row.output_tokens * (1.0 + conditions.output_share) / 2.0
    decode_s = row.measured_tpot_s * (output_tokens - 1.0)
    in_flight = row.concurrency / row.parallelism.attention_data
    decoding = np.array([max(in_flight * decode_s / (row.measured_ttft_s + decode_s), 1.0)])
    input_tokens = conditions.prompt_tokens(row) * (1.0 + conditions.input_share) / 2.0
    context = decoding * (input_tokens + output_tokens / 2.0)
    worker = peak_worker(priced)
    dense = replace(worker, token_ops=[op for op in worker.token_ops if not op.routed])
    step_s = dense.token_s(decoding) + _experts_s(worker, priced, decoding)
    step_s += worker.sequence_s(decoding) + worker.decode_s(decoding, context)
    return float(step_s[0]) / (1.0 + conditions.draft_tokens)


def _experts_s(worker: RooflineWorker, priced: PricedWorker, tokens: np.ndarray) -> np.ndarray:
    """Routed experts of all layers, on the mean rank."""
    total = np.zeros_like(tokens)
    for op in worker.token_ops:
        if not op.routed:
            continue
        experts = Experts(priced.model.hidden_size, 1.0, op.experts, op.experts_per_token, 1)
        used = drawn(experts, tokens * op.token_groups).used / op.expert_ranks
        moved = op.bytes_per_unit * tokens + op.weight_bytes * used
        total = total + op.layers * worker.rates.gemm.seconds(op.dtype, op.flops(tokens), moved)
    return total
