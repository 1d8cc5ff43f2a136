"""A cache by itself, for ``validate cache``: pages, policies, hits.

``replay`` serves a trace's requests; ``pages`` has what is resident, and evicts; ``ghosts`` are of arc, ``expiry`` is
of ttl; ``chains`` numbers pages. Policies are those of ``cache.evictions``.

Imports ``core``, ``layout`` and ``cache``.
"""
