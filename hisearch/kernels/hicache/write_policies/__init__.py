"""HiCache's write policies, a file each: when a node of the prefix cache is copied to host memory.

To add one: a file that assigns a ``WritePolicy`` to ``WRITE_POLICY`` (see ``base.policies``) and has a kernel
``copies(sim, d)``, true where node ``d``, which is in HBM alone and was just hit by an insertion, is to be copied now.
``sim.nodes[d].hits`` counts these hits. Or it declares ``at_eviction``, and needs no kernel. What it declares as
parameters are fields of ``Sim.tiers``. The same rule, slowly, belongs into
``tests/reference/restatement/sglang_host_rules.py``, where ``WRITE_POLICIES.given_values(config.parameters)`` has them.

Imports ``base``.
"""
