"""Checks of ``hisearch doctor``, which run no simulation.

Imports ``documents``, and the kinds below it.
"""
