"""Router policies, a file each: which worker a request goes to.

To add one: a file that assigns a ``RouterPolicy`` to ``ROUTER`` (see ``base.policies``) and has a kernel
``choose(fleet, route, k, r, now)``. It returns the index into ``Fleet.members`` of the one that takes request ``r`` on
route ``k``. ``route`` is the record ``Fleet.routes[k]``; all records are declared in ``layout.fleet``. A member is on
one route alone. ``choose`` is called where a route has at least two members, of which one or more take requests. They
are, in the router's order, which is ascending but for policies with ``hash_order``::

    for place in range(route.ups):
        m = fleet.up[route.first + place]
        member = fleet.members[m]  # inflight_requests, inflight_tokens, outstanding_tokens, weight, price

``fleet.trace.input_tokens[r]`` is known of a request, its output is not. What a policy decides by is declared
(``sees``, of ``base.policies.SIGHTS``), how old that is (``age``, ``remembers``), what a request costs (``cost``), and
whether load is shared (``shares_load``). Workers are asked by kernels of this package: ``loads.kv_usage(fleet, m,
now)`` is the KV in use of any engine's, ``prefix_index`` knows what they have cached. Draws are those of
``routing.draws``, so that the slow reference draws alike and recordings can be followed (``validate router``).
Parameters and state that the policy declares are fields of ``route``; ``member_state`` are fields of ``Fleet.members``,
which begin at 0. Their names must be new there. A kernel ``reset(fleet, route)``, if it has one, is called whenever the
members that take requests have changed.

The same rule, slowly, is a branch of ``tests/reference/router.py: Router._choose``; ``self.config`` has the parameters.
``tests/kernels/test_against_reference.py`` holds the two against each other. ``export`` refuses a policy that no router
has (``export/engines/flags.py: ROUTER_POLICIES``).

Imports ``base``, ``core``, ``layout``, ``traffic`` and modules of ``routing``.
"""
