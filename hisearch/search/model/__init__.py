"""What a search chooses from and how a choice is described: problem, deployments, jobs, trials, estimates.

Imports nothing else from ``search``; every other part of it may import from here.
"""
