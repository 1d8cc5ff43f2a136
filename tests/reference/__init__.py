"""Slow, obvious, exact simulators in plain Python: the truth that the compiled kernels are tested against.

The engines' rules themselves are restated in ``tests.reference.restatement``. Nothing here imports the package's
kernels; state lives in lists and dicts, and every rule is written where it applies.
"""
