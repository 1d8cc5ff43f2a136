"""Router policies, a file each: which worker a request goes to.

To add one: a file that assigns a ``RouterPolicy`` to ``ROUTER`` (see ``base.policies``) and has a kernel
``choose(fleet, route, k, r, now)``. It returns the member that takes request ``r`` on route ``k``, whose record is
``route``. What it declares as parameters and state are fields of ``route`` (``Fleet.routes``) and of ``Fleet.members``.
A kernel ``reset(fleet, route)``, if it has one, is called whenever the members that take requests have changed. The
same rule, slowly, belongs into ``tests/reference/router.py``. A policy knows what a router can know: loads in flight
and its own picture of caches, never the length of an output.
"""
