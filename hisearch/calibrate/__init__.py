"""Calibration: measurements of operators to the coefficients of a LatencyProfile."""
