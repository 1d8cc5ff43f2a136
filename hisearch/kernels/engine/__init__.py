"""What all engines have in common: steps, their cost, and how the event loop calls an engine.

``engine_calls`` calls engines by address; ``cost`` prices steps; ``device`` launches them; ``schedulers`` are
data-parallel ranks and pipeline micro-batches; ``log`` keeps steps, ``gaps`` the times between tokens.

Imports ``core``, ``layout``, ``traffic`` and ``cache``.
"""
