"""Compares measurements with predictions: finds which term of the model is off, and by how much."""
