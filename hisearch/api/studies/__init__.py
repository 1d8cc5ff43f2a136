"""Studies: run, stored, concluded, reported, exported.

Imports ``runs`` and ``deployments``.
"""
