"""Measured beside predicted: which term of the model is off, and by how much."""
