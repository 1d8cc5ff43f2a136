"""Measured serving runs over time, second by second: ``run_file`` reads them, ``series`` simulates, ``score`` compares."""
