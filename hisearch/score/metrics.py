"""Figures of one simulation. Keys carry their unit.

============================  =====================================================================================
``{ttft,tpot,e2e}_{mean,p50,p90,p95,p99}_s``  over finished requests and, as infinite, those in flight at
                              a horizon, with the other percentiles that the SLO states (``ttft_p97.5_s``); TPOT over
                              those with at least two output tokens, NaN where requests finished and none has a
                              second one
``itl_{mean,p50,p90,p95,p99}_s``  of every gap between two output tokens of a request, percentiles within 0.4 %;
                              NaN where there is none
``goodput_rps``               requests per second that are finished and within every SLO bound
``attainment``                share of all arrived requests that are good
``throughput_rps``            finished requests per second
``output_tokens_per_s``, ``total_tokens_per_s``   generated; prompt + generated, of finished requests
``hit_rate``, ``host_hit_rate``, ``storage_hit_rate``  hit tokens (all tiers; host tier; fetched into it from storage)
                              / prompt tokens of admitted requests
``rejected_fraction``         rejected / arrived
``preemptions``               per finished request
``utilisation``               busy device time / (workers there on average * makespan)
``accelerators``              that the deployment is made of
``capacity_load``             largest factor on the arrival rate that was simulated and met the SLO and the limits, 0
                              where none did; of studies whose objective it is, as the next two
``capacity_goodput_rps``, ``capacity_missed_load``  goodput there; smallest factor that was simulated and missed
``agents``                    of the largest society of the workload's kind that was simulated and met the SLO, 0 where
                              none did; of studies that ask for agents, as the next two
``agents_per_accelerator``, ``usd_per_agent_hour``  those over accelerators; price over those, electricity as with the
                              workload's own society
``usd_per_hour``              accelerators, hosts' share, cache tiers, electricity
``energy_usd_per_hour``       electricity alone; 0 where the host states no price of it
``mean_w``                    watts of accelerators, hosts' share, links and media, over the makespan
``usd_per_million_tokens``    dollars per million tokens (prompt + generated) at the replayed load
``joules_per_token``          energy of all these / (prompt + generated tokens)
``makespan_s``                first arrival to the last event of a worker (a step's start or end). That is the end
                              of the last step; where a horizon cut the simulation, the last event not after it, so
                              at most the horizon, and less where the workers were amid steps or idle by then.
                              A request that is rejected on arrival is no such event. Every figure per second divides
                              by it
============================  =====================================================================================
"""

from __future__ import annotations

#: The key among the metrics that an objective of a study reads; of the others it is their name with ``_s``.
_METRIC_OF = {
    "goodput": "goodput_rps",
    "capacity": "capacity_load",
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
