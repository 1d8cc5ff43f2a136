"""The three-stage search: what to simulate, in parallel and within a budget; fronts and recommendations."""
