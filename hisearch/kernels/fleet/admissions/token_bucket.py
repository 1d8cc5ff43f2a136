"""At a rate, with bursts."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.base.policies import AdmissionPolicy, Parameter, State

ADMISSION = AdmissionPolicy(
    "At a rate, with bursts.",
    parameters=(
        Parameter("rate_rps", 10.0, "requests a second.", above=0.0),
        Parameter("burst_requests", 20.0, "requests at once.", above=0.0),
    ),
    state=(State("tokens", "f8", "burst_requests"), State("tokens_s", "f8")),
)


@kernel
def admits(fleet, r, now):
    """Take a token out of the bucket, which fills at a rate; False where there is none."""
    config = fleet.config
    config.tokens = min(config.burst_requests, config.tokens + (now - config.tokens_s) * config.rate_rps)
    config.tokens_s = now
    if config.tokens < 1.0:
        return False
    config.tokens -= 1.0
    return True
