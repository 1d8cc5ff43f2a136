"""The verbs of ``hisearch``, one module each: parse, call, print.

Imports ``views`` and what ``cli`` has in common.
"""
