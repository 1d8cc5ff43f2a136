"""Host work of an engine in step costs."""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts, tokens_knot
from hisearch.specs.profile import HostTimes


def with_host_times(device: StepCosts, times: HostTimes, layers: int) -> StepCosts:
    """Costs of a device that waits for nobody, with an engine's host work.

    Time per prompt chunk, that of all ``layers``, goes into ``chunk_rate`` over its (query, key) pairs; exact on knots.
    """
    rate = device.chunk_rate
    if times.prompt_layer_s:
        new = np.maximum([tokens_knot(i) for i in range(rate.shape[0])], 1)[:, None].astype(np.float64)
        cached = np.array([tokens_knot(j) for j in range(rate.shape[1])], np.float64)[None, :]
        rate = rate + layers * times.prompt_layer_s / (new * (cached + (new + 1.0) / 2.0))
    return device._replace(host_s=times.step_s, host_per_sequence_s=times.per_sequence_s, chunk_rate=rate)
