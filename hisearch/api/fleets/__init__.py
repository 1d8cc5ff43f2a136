"""Studies of several models behind one router.

Imports ``studies``, ``deployments`` and ``runs``.
"""
