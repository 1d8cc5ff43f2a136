"""Calibration: measurements of operators to the coefficients of a LatencyProfile.

``tables``, ``step_log`` and ``own_tables`` read measurements; ``fitting``, ``families``, ``routing``, ``sparse`` and
``step_fit`` find coefficients; ``entries``, ``heads``, ``build``, ``profiles`` and ``writing`` make the profile of
them. ``served`` calibrates on a running server.
Imports ``observe``, ``latency`` and what is below them; ``api``, ``verify`` and ``cli`` import from here.
"""
