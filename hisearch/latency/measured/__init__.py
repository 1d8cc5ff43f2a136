"""Measured operator tables, and laws of attention read off them."""
