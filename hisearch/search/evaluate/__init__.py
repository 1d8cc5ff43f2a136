"""Running simulations: jobs on threads, processes or a Dask cluster; each trial is kept as it ends.

Imports ``model`` and ``records``.
"""
