"""Kinds ``Study``, ``FleetStudy``, ``SLO`` and ``SearchSpace``: the question.

Imports ``deployments``, ``workloads`` and what is below them.
"""
