"""The engines' scheduling rules restated in plain Python: slow, obvious, and equal to recordings of the engines' own.

The tests compare the kernels with them. The package does not import the kernels; state lives in lists and dicts, and
every rule is written where it applies.
"""
