"""One deployment on one workload.

Imports nothing else of ``api``.
"""
