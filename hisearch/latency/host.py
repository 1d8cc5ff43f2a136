"""Host work of an engine in step costs."""

from __future__ import annotations

import numpy as np

from hisearch.latency.costs import StepCosts, token_knots
from hisearch.specs.profile import HostTimes


def step_host_s(times: HostTimes, layers: int) -> float:
    """Seconds of every step of a model of ``layers`` layers, whatever is in it."""
    return times.step_s + layers * times.layer_s


def with_host_times(device: StepCosts, times: HostTimes, layers: int) -> StepCosts:
    """Costs of a device that waits for nobody, with an engine's host work.

    Time of a step with a prompt chunk, that of all ``layers``, goes into ``chunk_rate`` over its (query, key) pairs;
    exact on knots. Several chunks of a step share the rate of their total length, so that k equal ones bring a k-th of
    it: the host runs ahead where the device has much to do. A step's launches in full, however many chunks it has, and
    the longer of launches and device were held against measured runs too, and leave more errors (docs/accuracy.md).
    """
    rate = device.chunk_rate
    if times.prompt_layer_s:
        new = np.maximum(token_knots(rate.shape[0]), 1)[:, None].astype(np.float64)
        cached = np.array(token_knots(rate.shape[1]), np.float64)[None, :]
        rate = rate + layers * times.prompt_layer_s / (new * (cached + (new + 1.0) / 2.0))
    return device._replace(host_s=step_host_s(times, layers), host_per_sequence_s=times.per_sequence_s, chunk_rate=rate)
