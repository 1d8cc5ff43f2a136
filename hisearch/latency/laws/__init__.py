"""Closed laws of operator families: seconds of one call from its shape, a data sheet and a few named coefficients."""
