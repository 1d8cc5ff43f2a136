"""Measured serving runs, second by second: ``run_file`` reads them, ``series`` simulates, ``score`` compares.

Imports ``deployments``; ``cli`` imports ``score`` from here.
"""
