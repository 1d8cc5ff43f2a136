"""Latency estimators, one module each; see ``hisearch.latency.estimator`` for how they are found.

Imports ``laws``, ``matrices``, ``measured``, ``workers`` and ``devices``.
"""
