"""Common parts of all engines: steps, their cost, and how the event loop calls an engine.

``engine_calls`` calls engines by address; ``cost`` prices steps; ``device`` launches them; ``schedulers`` has
data-parallel ranks and pipeline micro-batches; ``log`` and ``decode_log``
record steps, ``gaps`` the times between tokens; ``ordered`` has prompts in order of admission.

Imports ``core``, ``layout``, ``traffic`` and ``cache``.
"""
