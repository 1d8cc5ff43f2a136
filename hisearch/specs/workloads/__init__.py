"""Kind ``Workload``: trace files, generators, agents.

Imports the foundations of ``specs`` alone.
"""
