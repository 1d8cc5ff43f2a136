"""Figures of a study and its self-contained offline HTML report."""
