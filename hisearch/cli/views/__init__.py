"""What verbs print: tables and sentences.

Imports ``output`` alone.
"""
