"""Hardware: links and collectives, prices, power. Facts and small formulas."""
