"""The arrays of a simulation, by subject.

``sim`` has requests, workers and settings; ``vllm_fields`` and its like what these records have for one engine or
feature. ``tree`` has prefix caches, ``costs`` step costs, ``log`` the log; ``fleet`` routers and pools; ``hicache``,
``tiers`` and ``agents`` the further arrays of each.

Short names of all kernels: ``r``, ``q`` a request; ``w`` a worker; ``m`` a member of the fleet; ``s`` a trace node;
``v`` a tree, which is a prefix cache or a store, and in what keeps vLLM's host memory one of ``Sim.stores``; ``d``
a node or a run of these, ``u`` another one; ``t`` a transfer; ``a`` an agent or an adapter; ``k`` a place in a list.

Imports ``core``. Every package may import from here.
"""
