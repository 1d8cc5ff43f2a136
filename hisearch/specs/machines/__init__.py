"""Kinds ``Accelerator``, ``Medium``, ``Host``, ``Fabric``, ``Device`` and ``LatencyProfile``; splits over ranks.

Imports ``models``.
"""
