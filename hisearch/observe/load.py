"""The load of servers whose requests are known by counters and histograms alone: a generator fitted to them.

Arrivals: the rate of requests that ended, and the spread of the gaps between arrivals. For a renewal process the
variance over the mean of counts in long windows tends to cv**2 (Cox and Lewis, 1966, section 4.5). Windows hold
``LEAST_IN_WINDOW`` requests on average; without ``LEAST_WINDOWS`` of them arrivals count as Poisson.

Lengths: the histogram's own quantiles, linear inside buckets, scaled so that the mean is the exact one (a histogram has
its sum). Hits of the prefix cache: one prompt prefix that all share, as long as the mean hit; below ``LEAST_HITS`` of
the tokens none.

What this loses is stated by ``losses``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hisearch.observe.prometheus import Histogram
from hisearch.observe.watch import Window

LEAST_IN_WINDOW, LEAST_WINDOWS = 5.0, 10
LEAST_HITS = 0.02
#: Fewest requests that lengths are taken from.
LEAST_REQUESTS = 20
#: Requests that are generated.
REQUESTS = 2000
#: Bounds of the spread of gaps: beyond, the count of requests in a window tells little.
CV = (0.3, 5.0)


def generator_of(window: Window, max_context_tokens: int | None = None) -> dict[str, Any]:
    """The section ``generator`` of a Workload.

    Raises:
        ValueError: too few requests ended, or their lengths are not told.
    """
    inputs, outputs = window.histograms.get("input_tokens"), window.histograms.get("output_tokens")
    if inputs is None or outputs is None:
        raise ValueError(
            "the server tells no lengths of its requests: a trace is needed (a step log, or its gateway's)"
        )
    requests = min(inputs.count, outputs.count)
    if requests < LEAST_REQUESTS:
        raise ValueError(
            f"{requests:.0f} requests ended within {window.seconds:.0f} s, at least {LEAST_REQUESTS} are needed for a "
            "load: watch longer (--seconds)"
        )
    cv = gap_cv(window)
    shared = shared_tokens(window)
    arrivals: dict[str, Any] = {"process": "poisson", "rate_rps": _rounded(requests / window.seconds)}
    if cv is not None and abs(cv - 1.0) > 0.1:
        arrivals |= {"process": "gamma", "cv": cv}
    generator: dict[str, Any] = {"requests": REQUESTS, "arrivals": arrivals}
    generator["first_input"] = lengths(inputs, shared)
    generator["output"] = lengths(outputs)
    if shared:
        generator["shared_prefixes"] = [{"name": "observed hits", "tokens": shared, "share": 1.0}]
    if max_context_tokens:
        generator["max_context_tokens"] = int(max_context_tokens)
    return generator


def gap_cv(window: Window) -> float | None:
    """Coefficient of variation of the gaps between requests; None where too few windows tell."""
    counts, seconds = np.array([count for _, count in window.ended]), np.array([span for span, _ in window.ended])
    if not counts.size or counts.sum() <= 0:
        return None
    join = max(math.ceil(LEAST_IN_WINDOW / max(counts.mean(), 1e-9)), 1)
    windows = len(counts) // join
    if windows < LEAST_WINDOWS:
        return None
    # Windows differ a little in length: counts are compared with what the mean rate expects of each.
    joined = counts[: windows * join].reshape(windows, join).sum(axis=1)
    expected = seconds[: windows * join].reshape(windows, join).sum(axis=1) * counts.sum() / seconds.sum()
    dispersion = float(np.mean((joined - expected) ** 2 / np.maximum(expected, 1e-9)))
    return round(float(np.clip(math.sqrt(dispersion), *CV)), 2)


def shared_tokens(window: Window) -> int:
    """Tokens of the shared prefix that stands for the hits."""
    queried, hits = window.counters.get("queried_tokens", 0.0), window.counters.get("hit_tokens", 0.0)
    inputs = window.histograms["input_tokens"]
    share = hits / queried if queried else 0.0
    return int(share * inputs.mean) if share >= LEAST_HITS else 0


def lengths(histogram: Histogram, less: int = 0) -> dict[str, Any]:
    """Lengths behind ``less`` tokens that all have in common, as a LengthSpec."""
    shares = np.linspace(0.0, 1.0, 21)
    values = np.array([max(histogram.quantile(float(share)) - less, 1.0) for share in shares])
    values = np.maximum.accumulate(values)
    # Of a draw that is linear between the quantiles.
    mean = float(np.mean((values[1:] + values[:-1]) / 2.0))
    values = np.maximum(values * max(histogram.mean - less, 1.0) / mean, 1.0)
    if values[-1] - values[0] < 1.0:
        return {"distribution": "constant", "scale_tokens": float(round(max(histogram.mean - less, 1.0)))}
    quantiles = [[round(float(share), 2), round(float(value), 1)] for share, value in zip(shares, values, strict=True)]
    return {"distribution": "empirical", "quantiles": quantiles}


def losses(window: Window) -> list[str]:
    """What a generator does not have of the real load, as sentences."""
    beyond = [
        f"{name.removesuffix('_tokens')} lengths beyond {histogram.bounds[-2]:,.0f} tokens"
        for name in ("input_tokens", "output_tokens")
        if (histogram := window.histograms.get(name)) is not None
        and len(histogram.bounds) > 1
        and histogram.counts[-1] > histogram.counts[-2]
    ]
    said = [
        "A generator, fitted to counters and histograms: which prompt has which output, sessions and order "
        "of requests are lost. Arrivals are those of ended requests."
    ]
    if beyond:
        said.append(f"Of {' and '.join(beyond)} the histogram tells the sum alone.")
    if shared_tokens(window):
        said.append(
            f"Hits of the prefix cache are a prefix of {shared_tokens(window):,} tokens that all share: larger or "
            "smaller caches would look alike. Take a trace for questions about caches."
        )
    return said


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
