"""Measured serving runs, repeated in the simulator: closed loops of fixed lengths, row by row of a CSV file."""
