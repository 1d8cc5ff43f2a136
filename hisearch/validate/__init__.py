"""Validates single parts of hisearch against recordings and measurements."""
