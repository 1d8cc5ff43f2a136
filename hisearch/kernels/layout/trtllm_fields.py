"""What the records of ``layout.sim`` have for TensorRT-LLM."""

from __future__ import annotations

#: State of a request.
REQUEST: list[tuple[str, str]] = [
    ("prompt_tokens", "i8"),  # tokens of its last prompt, see ``trtllm.entry``
]

#: State of a worker.
WORKER: list[tuple[str, str]] = [
    ("allocated_pages", "i8"),  # see ``trtllm.memory``
    ("promised_pages", "i8"),
    ("ended_prompts_new", "i4"),  # prompts that the newest, the older outstanding step ends
    ("ended_prompts_old", "i4"),
]

#: Settings of a pool.
CONFIG: list[tuple[str, str]] = [
    ("capacity_policy", "i8"),  # GUARANTEED_NO_EVICT or MAX_UTILIZATION
]
