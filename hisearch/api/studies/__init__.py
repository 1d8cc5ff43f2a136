"""Studies: run, stored, concluded, reported, exported.

Imports ``deployments``, ``run_folder`` and ``provenance``.
"""
