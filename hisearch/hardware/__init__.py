"""Hardware: collectives, prices, power. Facts and small formulas."""
