"""HiCache's prefetch policies, a file each: how long a request waits for its fetch from storage.

To add one: a file that assigns a ``PrefetchPolicy`` to ``PREFETCH`` (see ``base.policies``) and has a kernel
``longest_wait_s(sim, tokens)``: seconds after which a request takes what has come of the ``tokens`` that are fetched
for it; until then it is passed over. Up to release 0.5.19 the time counts from the fetch's begin and ``tokens`` are
those that storage has, 0 until that is known; later it counts from the request's first turn, and ``tokens`` are those
looked for. Without the kernel a request does not wait. What a policy declares as parameters are fields of
``Sim.tiers``. The same rule, slowly, belongs into ``tests/reference/restatement/sglang_host_rules.py``, where
``PREFETCHES.given_values(config.parameters)`` has them.

Imports ``base`` and ``layout``.
"""
