"""Host work of engines, fitted to all campaigns of measured runs together and judged on held-out ones."""
