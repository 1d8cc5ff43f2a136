"""Host work of an engine in step costs."""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts, tokens_knot
from hisearch.specs.profile import HostTimes

#: Share of a step's token-wise operators that nothing hides.
LEAST_SHARE = 0.4


def with_host_times(device: StepCosts, times: HostTimes, layers: int) -> StepCosts:
    """Costs of a device whose kernels run one by one and wait for nobody, with an engine's host work.

    ``hidden_s`` comes off the token-wise operators of every layer, of which at least ``LEAST_SHARE`` stays.
    Time per prompt chunk goes into ``chunk_rate``, over the chunk's (query, key) pairs; exact on its knots.
    """
    rate = device.chunk_rate
    if times.per_prompt_s:
        new = np.maximum([tokens_knot(i) for i in range(rate.shape[0])], 1)[:, None].astype(np.float64)
        cached = np.array([tokens_knot(j) for j in range(rate.shape[1])], np.float64)[None, :]
        rate = rate + times.per_prompt_s / (new * (cached + (new + 1.0) / 2.0))
    tokens = device.token_s
    if times.hidden_s:
        tokens = np.maximum(tokens - layers * times.hidden_s, LEAST_SHARE * tokens)
    return device._replace(
        host_s=times.step_s, host_per_sequence_s=times.per_sequence_s, token_s=tokens, chunk_rate=rate
    )
