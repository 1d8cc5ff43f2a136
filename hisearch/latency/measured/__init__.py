"""Measured operator tables, and laws of attention fitted to them."""
