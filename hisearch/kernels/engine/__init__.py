"""Common parts of all engines: steps, their cost, and how the event loop calls an engine.

``engine_calls`` calls engines by address; ``cost`` prices steps; ``device`` launches them; ``schedulers`` has
data-parallel ranks and pipeline micro-batches; ``log`` records steps, ``gaps`` the times between tokens.

Imports ``core``, ``layout``, ``traffic`` and ``cache``.
"""
