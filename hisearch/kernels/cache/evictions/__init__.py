"""Eviction policies, a file each: which leaf of a prefix cache, or which run of a store, goes first.

To add one: a file that assigns an ``EvictionPolicy`` to ``EVICTION`` (see ``base.policies``) and has a kernel
``before(sim, a, b)``, true where leaf a goes before leaf b. It must be a total order: ``recency.older`` ends ties. What
it declares as parameters are fields of ``Sim.store_tiers`` (``store_runs.tier_of``). The same rule, slowly, belongs
into ``tests/kernels/store_reference.py`` and ``tests/kernels/sglang_invariants.py: eviction_key``.

A policy that says what goes first among single ``pages`` is one of ``validate cache`` too (``cachesim.pages``).
Imports ``base``, ``layout`` and modules of ``cache``.

What else a policy may have, of store v and the run d whose turn has come::

    entering(sim, d)                  d may be evicted from now on: set its key
    second_chance(sim, v, d)          GOES, GOES_ROUND or MOVES_ON (``store_queues``)
    goes_for(sim, d, s, begin)        whether d may go for a page behind ``begin`` in trace-tree node s
    pages_to_go(sim, v, d, wanted)    of ``wanted`` pages, how many go from the end of d before another one's turn
    going(sim, v, d)                  pages of d are about to go

With ``queues=True`` a store has two queues and remembers pages that have gone, in one or two lists (``store_queues``)::

    moves_on(sim, d)                  whether a use moves d into the second queue at once
    recalled(sim, v, which, n1, n2)   a page comes that list ``which`` remembered; the lists had n1 and n2 pages
    first_queue(sim, v, recalled)     from which queue, 0 or 1, a page goes for one that came so
    remembered_in(sim, d)             which list, 1 or 2, remembers pages of d; 0: none
    forgets(sim, v, n1, n2)           which list, 1 or 2, forgets a page now; 0: none does
"""
