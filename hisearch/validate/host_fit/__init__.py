"""Host work of engines, fitted to all campaigns of measured runs at once and judged by those left out."""
