"""From plans to the arrays of ``kernels.layout``, one module for each part of them.

Imports ``plans`` and ``results``.
"""
