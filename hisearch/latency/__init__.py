"""Latency: a model's operators, estimators of a step's time and energy, memory plans, step-cost tables."""
