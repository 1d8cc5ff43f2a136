"""Pure functions of a simulation's result: percentiles, goodput, SLO attainment, capacity, cost, energy."""
