"""Results of a simulation, and analyses of its log: gaps between tokens, residence, series over time.

Imports nothing else of ``simulate``.
"""
