"""The verbs of ``hisearch``, one module each: parse, call, print.

Imports ``views`` and the shared modules of ``cli``.
"""
