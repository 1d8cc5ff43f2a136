"""The largest rate that given accelerators carry within an SLO: candidates, their race, the answer around the winner.

Imports ``model`` and ``stages``; ``refine`` and ``api`` import from here.
"""
