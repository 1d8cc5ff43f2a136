"""From plans to the arrays of ``kernels.layout``, one module for each group of arrays.

Imports ``plans`` and ``results``.
"""
