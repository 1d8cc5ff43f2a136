"""What a run of long prompts tells of the time that prompts take in steps.

Notation
    w   TTFT over a request's latency, measured
    s   share of its latency that goes by the time of prompts in steps, simulated (``Pricer.prompt_share``)
    e   log(simulated / measured): e_ttft and e_step as the fit has them

    e_latency = log(w exp(e_ttft) + (1 - w) exp(e_step))
    e_prompts = sign(e_latency) log(1 + (exp|e_latency| - 1) / s)

All of the latency's error is put on prompts: if prompts take f times as long, a latency grows to 1 + s (f - 1). The
share is taken as that of the shorter latency, so that too slow and too fast count alike. Decodes' errors are in it
too, the more the smaller the share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.validate.silicon.pricing import Price, Pricer
from hisearch.validate.silicon.rows import SiliconRow

#: Prompt tokens over output tokens of runs that are looked at, and the least share of prompts of those that tell.
LONG, LEAST_SHARE = 4, 0.3


@dataclass(frozen=True)
class PromptWeights:
    """w and s of the module's notation."""

    ttft_part: float
    share: float

    def error(self, errors: F8) -> float:
        """e_prompts, from e_ttft and e_step."""
        ttft, step = np.exp(errors)
        of_latency = np.log(self.ttft_part * ttft + (1.0 - self.ttft_part) * step)
        return float(np.sign(of_latency) * np.log1p(np.expm1(abs(of_latency)) / self.share))


def prompt_weights(row: SiliconRow, pricer: Pricer) -> PromptWeights | None:
    """Of a run; None where it tells little of prompts."""
    if row.input_tokens < LONG * row.output_tokens:
        return None
    share = pricer.prompt_share(row)
    measured = Price(row.measured_ttft_s, row.measured_tpot_s).latency_s(row.output_tokens)
    return None if share < LEAST_SHARE else PromptWeights(row.measured_ttft_s / measured, share)
