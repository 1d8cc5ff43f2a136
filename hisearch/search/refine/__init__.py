"""Steps after the stages: the recommendation's neighbours, the front widened with a surrogate, alternatives.

Imports ``model``, ``select``, ``evaluate``, ``stages`` and ``rate``.
"""
