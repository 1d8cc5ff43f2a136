"""Kind ``Deployment``: pools, engines, routers, cache tiers, and what of these cannot work together.

Imports ``models`` and ``machines``.
"""
