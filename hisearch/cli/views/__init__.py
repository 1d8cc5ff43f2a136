"""Output of the verbs: tables and sentences.

Imports ``output`` alone.
"""
