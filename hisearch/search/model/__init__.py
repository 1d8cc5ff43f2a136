"""What a search chooses of, and what a choice comes to: the question, deployments, jobs, trials, estimates.

Imports nothing else of ``search``; all of it may import from here.
"""
