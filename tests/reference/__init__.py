"""Slow, obvious, exact simulators in plain Python: the truth that the compiled kernels are tested against.

Nothing here imports the package's kernels; state lives in lists and dicts, and every rule is written where it applies.
"""
