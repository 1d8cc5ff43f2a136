"""What results of benchmark tools have in common: a run of a client, summed up and perhaps request by request.

Notation
    N   successful requests of a run
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hisearch.base.dtypes import F8, I8
from hisearch.specs.wording import counted, per_second

#: Percentiles that are compared.
PERCENTILES = (50, 90, 95, 99)
#: A median TTFT that grows from quarter to quarter, by this factor in all, shows an overload: the queue never empties.
#: Then the fewest requests for which this is tested.
OVERLOADED, LEAST_REQUESTS = 5.0, 40


@dataclass(frozen=True)
class PerRequest:
    """Successful requests, arrays of length N, in the order in which they were sent.

    rows: their places in that order, failed ones included. start_s: when each was sent, from the first one; None where
    the tool does not record it. ttft_s, e2e_s: seconds; TTFT is NaN where the responses were not streamed.
    input_tokens, output_tokens: as the tool counted them; thinking_tokens: likewise, of the output, None: not counted.
    """

    rows: I8
    start_s: F8 | None
    ttft_s: F8
    e2e_s: F8
    input_tokens: I8
    output_tokens: I8
    thinking_tokens: I8 | None = None

    def keep(self, mask: np.ndarray) -> PerRequest:
        """The requests under ``mask``, shape (N,)."""
        start_s = None if self.start_s is None else self.start_s[mask]
        return PerRequest(
            self.rows[mask], start_s, self.ttft_s[mask], self.e2e_s[mask], self.input_tokens[mask],
            self.output_tokens[mask], None if self.thinking_tokens is None else self.thinking_tokens[mask],
        )  # fmt: skip

    def growing_wait(self) -> tuple[float, float] | None:
        """Median TTFT of the first and of the last quarter of the requests, if it grew throughout.

        None if it did not grow by ``OVERLOADED`` in all, or if it is not known when requests were sent.
        """
        if self.start_s is None or len(self.start_s) < LEAST_REQUESTS:
            return None
        quarters = np.array_split(self.ttft_s[np.argsort(self.start_s, kind="stable")], 4)
        medians = [float(np.median(quarter)) for quarter in quarters]
        rising = all(earlier < later for earlier, later in itertools.pairwise(medians))
        return (medians[0], medians[-1]) if rising and medians[-1] > OVERLOADED * medians[0] else None

    def figures(self) -> dict[str, float]:
        """Means and percentiles of TTFT, TPOT and E2E, seconds."""
        return latency_figures(self.ttft_s, self.e2e_s, self.output_tokens)


@dataclass(frozen=True)
class Measurement:
    """One run of a benchmark.

    tool: its name. path, line: where the run stands; line is None in a file of one run. part: which run of a document.
    sent, failed: requests. rate_rps: of random arrivals, infinite where all came at once, None where times are recorded
    or the trace's own. burstiness: shape of the gamma distribution of gaps between arrivals, 1 for a Poisson process.
    concurrency: most requests that the client had in flight, or None. input_tokens: of all successful prompts, None
    where not stated. figures: seconds and rates under the names of ``score.metrics``. requests: one by one, if the
    tool kept them. notes: what the tool's names mean, where that differs from ours.
    """

    tool: str
    path: Path
    line: int | None
    part: str
    sent: int
    failed: int
    rate_rps: float | None
    concurrency: int | None
    input_tokens: int | None
    figures: dict[str, float]
    requests: PerRequest | None
    burstiness: float = 1.0
    notes: tuple[str, ...] = field(default=())

    @property
    def source(self) -> str:
        """The file, and which run of it."""
        place = str(self.path) if self.line is None else f"{self.path}:{self.line}"
        return f"{place} {self.part}" if self.part else place

    @property
    def is_closed_loop(self) -> bool:
        """Whether a request was sent as soon as another one ended, and for no other reason."""
        held = self.concurrency is not None and self.concurrency < self.sent
        return held and (self.rate_rps is None or math.isinf(self.rate_rps))

    @property
    def pacing(self) -> str:
        """How the client sent its requests, as text."""
        held = "" if self.concurrency is None else f", at most {counted(self.concurrency, 'request')} in flight"
        if self.is_closed_loop:
            return f"closed loop{held}"
        if self.rate_rps is None:
            return f"at recorded times{held}"
        if math.isinf(self.rate_rps):
            return f"all at once{held}"
        shape = "Poisson arrivals" if self.burstiness == 1.0 else f"gamma arrivals of shape {self.burstiness:g}"
        return f"{shape} at {per_second(f'{self.rate_rps:g}')}{held}"


def latency_figures(ttft_s: F8, e2e_s: F8, output_tokens: I8) -> dict[str, float]:
    """Means and percentiles of requests' latencies, seconds.

    TPOT only if some request has a second token, TTFT and TPOT only if all TTFTs are known.
    """
    several = output_tokens > 1
    values = {"e2e": e2e_s}
    if not np.isnan(ttft_s).any():
        values["ttft"] = ttft_s
        if several.any():
            values["tpot"] = (e2e_s - ttft_s)[several] / (output_tokens[several] - 1)
    figures = {}
    for name, seconds in values.items():
        figures[f"{name}_mean_s"] = float(seconds.mean())
        for percent, value in zip(PERCENTILES, np.percentile(seconds, PERCENTILES), strict=True):
            figures[f"{name}_p{percent}_s"] = float(value)
    return figures


def rates_of(requests: PerRequest) -> dict[str, float]:
    """Throughput from the first request sent to the last token, where it is known when requests were sent."""
    if requests.start_s is None:
        return {}
    span_s = float((requests.start_s + requests.e2e_s).max() - requests.start_s.min())
    if not span_s > 0:
        return {}
    tokens = float(requests.output_tokens.sum())
    rates = {"throughput_rps": len(requests.rows) / span_s}
    return rates | ({"output_tokens_per_s": tokens / span_s} if tokens else {})
