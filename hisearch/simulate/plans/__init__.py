"""Plans compiled from specs: a worker, its tiers and agents, pools of workers, a fleet.

Imports nothing else of ``simulate``.
"""
