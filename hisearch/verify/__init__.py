"""Compares measurements with predictions: finds which term of the model is off, and by how much.

``prediction`` and ``requests`` match what was measured; ``diagnosis``, ``terms`` and ``correction_search`` find what is
off; ``findings`` say it; ``recalibrated`` writes the profile.
Imports ``calibrate``, ``simulate`` and what is below them.
"""
