"""Closed laws of operator families: seconds of one call from its shape, a data sheet and a few named coefficients.

A family a module (``gemm``, ``attention``, ``moe``, ``sparse``, ``linear``, ``collectives``); ``model`` adds them up
for a worker, ``sheet`` is the data sheet, ``ranges`` say for which shapes a law was fitted.
Imports ``matrices``.
"""
