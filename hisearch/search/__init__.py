"""The three-stage search: what to simulate, in parallel and within a budget; fronts and recommendations.

``driver`` runs the stages in a row and ``tables`` lays out what came of them; ``model``, ``select``, ``records``,
``evaluate``, ``stages`` and ``refine`` lie below, ``confidence`` above. Callers begin with ``driver.search``.
Imports ``score``, ``simulate`` and what is below them.
"""
