"""Figures of one simulation. Keys carry their unit.

============================  =====================================================================================
``{ttft,tpot,e2e}_{mean,p50,p90,p95,p99}_s``  over finished requests; requests in flight at a horizon count as infinite.
                              Includes the other percentiles of the SLO (``ttft_p97.5_s``). TPOT over requests with
                              at least two output tokens; NaN if requests finished and none has a second one
``ttfo_*``                    likewise, over requests with a visible token (NaN if requests finished and none has one);
                              only where requests think, or the SLO or a limit names it
``itl_{mean,p50,p90,p95,p99}_s``  over every gap between two output tokens of a request, percentiles within 0.4 %;
                              NaN without gaps
``goodput_rps``               requests per second that are finished and within every SLO bound
``attainment``                share of all arrived requests that are good
``throughput_rps``            finished requests per second; of a carried-on run what ended in its measured part
``output_tokens_per_s``, ``total_tokens_per_s``   generated; prompt + generated, of finished requests
``hit_rate``, ``host_hit_rate``, ``storage_hit_rate``  hit tokens (all tiers; host tier; fetched into it from storage)
                              / prompt tokens of admitted requests
``rejected_fraction``         rejected / arrived
``preemptions``               per finished request
``utilisation``               busy device time / (mean number of workers * makespan)
``front_end_busy``            share of time for which the processes in front of the busiest pool's workers have work
``accelerators``              of the deployment
``capacity_load``             largest factor on the arrival rate that was simulated and met the SLO and the limits, 0
                              if none did; only in studies with this objective, as the next two
``capacity_goodput_rps``, ``capacity_missed_load``  goodput there; smallest factor that was simulated and missed
``queue_growth_rps``          requests per second by which the queue grows (``score.steady_state``), 0 without a trend:
                              at loads other than the study's, and at ``capacity_missed_load``
``agents``                    size of the largest population of the workload's kind that was simulated and met the SLO,
                              0 if none did; only in studies that ask for agents, as the next two
``agents_per_accelerator``, ``usd_per_agent_hour``  agents / accelerators; price / agents, electricity as with the
                              workload's own population
``usd_per_hour``              accelerators, hosts' share, cache tiers, electricity
``energy_usd_per_hour``       electricity alone; 0 if the host states no electricity price
``mean_w``                    watts of accelerators, hosts' share, links and media, over the makespan
``usd_per_million_tokens``    dollars per million tokens (prompt + generated) at the replayed load
``joules_per_token``          energy of all these / (prompt + generated tokens)
``makespan_s``                first arrival to the last event of a worker (a step's start or end). That is the end
                              of the last step. If a horizon cut the simulation: the last event not after it, so at
                              most the horizon, and less if workers were amid steps or idle by then. The rejection of
                              a request on arrival is no such event. Every figure per second divides by it
============================  =====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from hisearch.specs.wording import format_percent

#: Share of time from which on results say that the processes in front of a worker are busy: chance makes requests wait
#: there before the share is 1, which is not simulated. Chosen.
FRONT_END_BUSY = 0.8

#: Metric key of a study's objective, if it is not the objective's name with ``_s``.
_METRIC_OF = {
    "goodput": "goodput_rps",
    "capacity": "capacity_load",
    "queue_growth": "queue_growth_rps",
    "accelerators": "accelerators",
    "usd_per_hour": "usd_per_hour",
    "usd_per_million_tokens": "usd_per_million_tokens",
    "agents_per_accelerator": "agents_per_accelerator",
    "usd_per_agent_hour": "usd_per_agent_hour",
    "mean_w": "mean_w",
    "joules_per_token": "joules_per_token",
}


def metric_of(objective: str) -> str:
    """Metric key of an objective: ``ttft_p99`` -> ``ttft_p99_s``, ``goodput`` -> ``goodput_rps``."""
    return _METRIC_OF.get(objective, f"{objective}_s")


def joules_per_generated_token(metrics: Mapping[str, float]) -> float:
    """All energy of a simulation / its generated tokens; infinite if it has neither."""
    tokens_per_s = metrics.get("output_tokens_per_s", 0.0)
    return metrics.get("mean_w", math.inf) / tokens_per_s if tokens_per_s > 0 else math.inf


def front_end_note(metrics: Mapping[str, float]) -> str:
    """What a busy front end means, without a full stop; "" where there is time left."""
    share = metrics.get("front_end_busy", 0.0)
    if share <= FRONT_END_BUSY:
        return ""
    return (
        f"the process in front of a worker is busy {format_percent(share)} of the time, reading prompts and sending "
        "tokens, so requests and tokens wait for it: engine.api_servers starts more of them, engine.stream_interval "
        "puts more tokens into a message"
    )
