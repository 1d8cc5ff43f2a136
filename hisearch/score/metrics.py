"""Figures of one simulation. Keys carry their unit.

============================  =====================================================================================
``{ttft,tpot,e2e}_{mean,p50,p90,p95,p99}_s``  over finished requests and, as infinite, those in flight at
                              a horizon; TPOT over those with at least two output tokens
``goodput_rps``               requests per second that are finished and within every SLO bound
``attainment``                share of all arrived requests that are good
``throughput_rps``            finished requests per second
``output_tokens_per_s``, ``total_tokens_per_s``   generated; prompt + generated, of finished requests
``hit_rate``, ``host_hit_rate``  hit tokens (all tiers; host tier) / prompt tokens of admitted requests
``rejected_fraction``         rejected / arrived
``preemptions``               per finished request
``utilisation``               busy device time / (workers * makespan)
``usd_per_hour``              accelerators, hosts' share, host-tier memory
``usd_per_million_tokens``    dollars per million tokens (prompt + generated) at the replayed load
``joules_per_token``          energy / (prompt + generated tokens)
``makespan_s``                first arrival to last finish
============================  =====================================================================================
"""
