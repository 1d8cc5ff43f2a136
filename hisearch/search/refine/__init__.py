"""What follows the stages: neighbours of the recommendation, the front widened with a surrogate, alternatives.

Imports ``model``, ``select``, ``evaluate`` and ``stages``.
"""
