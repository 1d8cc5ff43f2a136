"""The engines' scheduling rules restated in plain Python: slow, obvious, and equal to recordings of the engines' own.

What `hisearch validate scheduler --alone` holds the kernels against, and the tests with it. Nothing here imports the
kernels; state lives in lists and dicts, and every rule is written where it applies.
"""
